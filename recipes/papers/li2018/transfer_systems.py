"""Systems of a rated style transfer file as corpora: Acc, Sim, PP, GM and mean ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.files import finite_or_none
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.progress import track
from ctrlreward.recipes.papers.li2018.preferences import Thresholds
from ctrlreward.recipes.papers.meta_eval.correlations import print_rows
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.recipes.papers.textual_transfer.transfer_baselines import (
    CorpusTransfer,
    constants,
    copies,
    corpus_transfer,
    sentence_scores,
)
from ctrlreward.samples import Samples
from ctrlreward.scorers.transfer import TransferQuality

COPYING = "copying the source"
CONSTANT = "a constant sentence"


@dataclass(frozen=True)
class SystemRow:
    """Scores of one system over its outputs, taken as a corpus.

    Attributes:
        system: Name of the system, or of a baseline that no one rated.
        outputs: Number of outputs.
        rating: Mean of its ratings; NaN for a baseline.
        scores: Acc, Sim and PP over the corpus; GM under the judge's own thresholds.
        gm: GM of the corpus under each of the thresholds, by their name; 0 or more.
    """

    system: str
    outputs: int
    rating: float
    scores: CorpusTransfer
    gm: Mapping[str, float]


def score_systems(
    rated: Rated,
    judge: TransferQuality,
    unrated: Mapping[str, Samples],
    thresholds: Mapping[str, Thresholds],
) -> list[SystemRow]:
    """Score the outputs of each system, also of systems without ratings, as one corpus each.

    Args:
        rated: The rated file, with systems, sources, labels and the rating `mean`.
        judge: Scores accuracy, similarity and perplexity.
        unrated: Result of `baselines`.
        thresholds: t1 to t4, by the name of a column of GM.

    Returns:
        The rated systems, the highest mean rating first, then the others.
    """
    ratings = mean_ratings(rated)
    corpora = {
        name: rated.samples[[i for i, system in enumerate(rated.systems or ()) if system == name]]
        for name in sorted(ratings, key=lambda name: -ratings[name])
    } | dict(unrated)
    rows = []
    with track("scoring corpora", sum(map(len, corpora.values()))) as advance:
        for name, samples in corpora.items():
            scores = corpus_transfer(sentence_scores(judge, samples), judge.thresholds)
            parts = (scores.accuracy, scores.similarity, scores.perplexity)
            gm = {under: float(adjusted_gm(*parts, t)) for under, t in thresholds.items()}
            rows.append(SystemRow(name, len(samples), ratings.get(name, np.nan), scores, gm))
            advance(len(samples))
    return rows


def mean_ratings(rated: Rated) -> dict[str, float]:
    """Return the mean of the rating `mean` of each named system."""
    systems = np.array(rated.systems or (), dtype=object)
    return {
        name: valid_mean(rated.ratings["mean"][systems == name])
        for name in dict.fromkeys(rated.systems or ())
        if name is not None
    }


def baselines(rated: Rated, sentences: Mapping[str, str]) -> dict[str, Samples]:
    """Return outputs that take no model: each item's source, and a constant sentence per label.

    Args:
        rated: The rated file, with sources, labels and items as clusters.
        sentences: The constant sentence of each label.

    Raises:
        ValueError: A label does not have a constant sentence.
    """
    items = dict(zip(rated.clusters or (), range(len(rated.samples)), strict=True))
    labels = rated.samples.require("labels", "the constant sentences")
    missing = sorted(set(labels) - set(sentences))
    if missing:
        raise ValueError(
            f"constants has no sentence for {', '.join(missing)}, must have one per target style "
            f"(--constants.{missing[0]}='...')"
        )
    prompts = rated.samples[list(items.values())]
    return {COPYING: copies(prompts), CONSTANT: constants(prompts, sentences)}


def system_pearson(rows: Sequence[SystemRow], under: str) -> float:
    """Return Pearson's r of corpus GM with mean ratings over the rated systems; NaN if constant."""
    rated = np.array([(row.gm[under], row.rating) for row in rows if not np.isnan(row.rating)])
    if len(rated) < 3 or np.isnan(rated).any() or not np.ptp(rated, axis=0).all():
        return float("nan")
    return float(np.corrcoef(rated.T)[0, 1])


def beaten_by(rows: Sequence[SystemRow], baseline: str, under: str) -> list[str]:
    """Return the rated systems whose corpus GM does not exceed a baseline's."""
    (bar,) = (row.gm[under] for row in rows if row.system == baseline)
    return [row.system for row in rows if not np.isnan(row.rating) and not row.gm[under] > bar]


def systems_record(rows: Sequence[SystemRow]) -> dict[str, Any]:
    """Return the rows and Pearson's r as JSON values; NaN is null."""
    names = list(rows[0].gm)
    content = [
        {
            "system": row.system,
            "outputs": row.outputs,
            "rating": finite_or_none(row.rating),
            **{name: finite_or_none(v) for name, v in asdict(row.scores).items() if name != "gm"},
            "gm": {under: finite_or_none(value) for under, value in row.gm.items()},
        }
        for row in rows
    ]
    return {"rows": content, "pearson": {u: finite_or_none(system_pearson(rows, u)) for u in names}}


def print_systems(rows: Sequence[SystemRow]) -> None:
    """Print the systems, Pearson's r with the ratings, and the baselines that outperform one."""
    names = list(rows[0].gm)
    headings = ["system", "n", "Acc", "Sim", "PP", *(f"GM, {under}" for under in names)]
    cells = []
    for row in rows:
        scores = row.scores
        parts = f"{scores.accuracy:.3f}", f"{scores.similarity:.3f}", f"{scores.perplexity:.1f}"
        rating = "–" if np.isnan(row.rating) else f"{row.rating:.2f}"
        values = (f"{row.gm[under]:.2f}" for under in names)
        cells.append([row.system, str(row.outputs), *parts, *values, rating])
    print_rows("Systems, each as one corpus", [*headings, "mean rating"], cells, whole=True)
    for under in names:
        r = system_pearson(rows, under)
        value = "undefined, since GM is equal" if np.isnan(r) else f"{r:.3f}"
        print(f"Pearson of GM ({under}) with the mean rating: {value}")
        for baseline in (COPYING, CONSTANT):
            beaten = beaten_by(rows, baseline, under)
            if beaten:
                print(f"  {baseline} is not behind {', '.join(beaten)}: GM misleads here")
