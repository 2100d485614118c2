"""`ctrlreward meta-eval li2018`: preservation and GM on rated style transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ctrlreward.commands.formats.rated_files import Rated, read_li2018
from ctrlreward.commands.meta_eval.rated_report import (
    Outputs,
    report_correlations,
    score_rated,
    write_record,
)
from ctrlreward.commands.score import name_components
from ctrlreward.functional.preferences import (
    PairwiseAgreement,
    Thresholds,
    fit_gm,
    pairwise_agreement,
    pairwise_preferences,
)
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment, Method
from ctrlreward.scorers.base import Scorer, Scores
from ctrlreward.scorers.model_scorer import ModelOptions
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.transfer import TransferQuality

# The inputs of GM, in the order of `fit_gm`.
_GM_INPUTS = ("label_probability", "similarity", "perplexity")


@dataclass(frozen=True)
class HeldOutFit:
    """GM thresholds fitted to preferences of half of the items, and their held-out agreement.

    Attributes:
        thresholds: The fitted thresholds t1 to t4.
        fitted_pairs: Number of preferences that they were fitted to.
        judged_pairs: Number of held-out preferences, of the other half.
        fitted: Agreement with the held-out preferences under the fitted thresholds.
        default: Agreement with the held-out preferences under the paper's thresholds.
    """

    thresholds: Thresholds
    fitted_pairs: int
    judged_pairs: int
    fitted: PairwiseAgreement
    default: PairwiseAgreement


def li2018(
    data: Path,
    classifier: str | None = None,
    model: str = "smollm2-135m",
    similarity: str = "minilm-l6",
    aligner: str = "minilm-l6",
    method: Method = "embedding",
    fit_gm: bool = False,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate preservation and GM on the rated style transfers of Li et al. (2018).

    Args:
        data: Their rated sentences, human_ratings_yelp.csv.
        classifier: Style classifier with the labels positive and negative: a local folder or
            Hugging Face id. Without one, only preservation is evaluated.
        model: Language model for the perplexity.
        similarity: Sentence encoder for the similarity.
        aligner: Model for preservation: an encoder, or an aligner trained for the method.
        method: Alignment method: embedding, discriminative or regression.
        fit_gm: Also fit GM's thresholds to the preferences of every other item, and compare them
            with the paper's on the rest.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap, and of the search for thresholds.
        options: Device, dtype and token budget of the models.
    """
    if fit_gm and classifier is None:
        raise ValueError("--fit-gm needs GM: give a --classifier")
    outputs = Outputs(output, scores, plot, resamples, seed)
    scorers: list[Scorer] = [Alignment(aligner, "preservation", method, **options)]
    if classifier is not None:
        scorers.append(
            TransferQuality(
                Accuracy(classifier, **options),
                Similarity(similarity, **options),
                Perplexity(model, **options),
            )
        )
    file = read_li2018(data)
    components = name_components(scorers, None)
    for name in ("accuracy", "log_likelihood"):  # not inputs of GM
        components.pop(name, None)
    values = score_rated(file, components, outputs)
    record = report_correlations(file, values, components, outputs)
    if fit_gm:
        report_gm_fit(fit_gm_held_out(file, values, seed), record, outputs)


def fit_gm_held_out(rated: Rated, scores: Mapping[str, Scores], seed: int) -> HeldOutFit:
    """Fit GM's thresholds on every other item, and evaluate them on the rest.

    A preference is a pair of outputs for the same item with different mean ratings.

    Args:
        rated: The rated file, with the rating `mean` and items as clusters.
        scores: Scores with the three inputs of GM, arrays of shape (n,) by name.
        seed: Seed of the search for thresholds.
    """
    inputs = np.stack([scores[name] for name in _GM_INPUTS], axis=1)
    items = rated.clusters or ()
    order = {item: position for position, item in enumerate(dict.fromkeys(items))}
    first_half = np.array([order[item] % 2 == 0 for item in items])
    ratings = np.where(np.isnan(inputs).any(axis=1), np.nan, rated.ratings["mean"])
    halves = [np.where(half, ratings, np.nan) for half in (first_half, ~first_half)]
    training, held_out = (pairwise_preferences(half, items) for half in halves)
    preferred, rejected = (inputs[rows] for rows in training)
    fit = fit_gm(preferred, rejected, seed=seed)
    better, worse = (inputs[rows] for rows in held_out)
    return HeldOutFit(
        fit.thresholds,
        len(preferred),
        len(better),
        pairwise_agreement(better, worse, fit.thresholds),
        pairwise_agreement(better, worse),
    )


def report_gm_fit(fit: HeldOutFit, record: dict[str, Any], outputs: Outputs) -> None:
    """Print GM's agreement with held-out preferences, and add it to the JSON file.

    Args:
        fit: Agreement under the fitted and the paper's thresholds.
        record: Result of `report_correlations`.
        outputs: Files to write.
    """
    agreements = {"fitted": fit.fitted._asdict(), "default": fit.default._asdict()}
    write_record({**record, "gm": {**asdict(fit), **agreements}}, outputs)
    numbers = ", ".join(f"{threshold:.1f}" for threshold in fit.thresholds)
    print(f"GM thresholds fitted to {fit.fitted_pairs} preferences: ({numbers})")
    print(f"Agreement of GM with {fit.judged_pairs} preferences of held-out items:")
    for name, agreement in (("fitted", fit.fitted), ("the paper's", fit.default)):
        shares = f"{agreement.agreed:.1%} (ties, counted as disagreement: {agreement.tied:.1%})"
        print(f"  {name} thresholds: {shares}")
