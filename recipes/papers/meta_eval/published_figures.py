"""Correlations with human ratings that papers report, for comparison with ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from pathlib import PurePath

from ctrlreward.recipes import papers


@dataclass(frozen=True)
class Published:
    """A correlation that a paper reports.

    Attributes:
        file: Name of the rated file, or of the data set.
        score: The score, as its scorer names it.
        rating: The rating, as `Rated` names it.
        level: `"sample"` or `"system"`.
        model: The scorer and its model: `"CTC E BERT-base"`.
        source: The paper and its tables.
        statistic: `"pearson"`, `"spearman"` or `"kendall"`.
        value: -1 to 1.
    """

    file: str
    score: str
    rating: str
    level: str
    model: str
    source: str
    statistic: str
    value: float


_STATISTICS = ("pearson", "spearman", "kendall")

# Baselines that are a separate score here; the papers list them below another score.
_COMPUTED = {"word length (baseline)": "word_length"}

# No paper here has correlations with Li et al.'s ratings. CTC's are for other transfers of Yelp
# sentences, rated for Mir et al. (2019), which CTC released as yelp.json.
_MIR = "mir2019 yelp"
_LI = "human_ratings_yelp"


def published(
    file: str, score: str | None = None, rating: str | None = None, level: str | None = None
) -> tuple[Published, ...]:
    """Return the figures for a rated file, in the order of the tables.

    Args:
        file: Name of the file; its suffix does not matter. For human_ratings_yelp.csv the figures
            are for other texts, as `Published.file` says.
        score: Only figures of this score, or of the baseline that it is.
        rating: Only figures for this rating.
        level: Only figures of this level.

    Examples:
        >>> figures = published("qags_xsum.json", score="consistency")
        >>> max(figures, key=lambda figure: figure.value).model
        'CTC D RoBERTa-large (XSUM)'
    """
    stem = PurePath(file).stem
    figures: Sequence[Published] = PUBLISHED
    if stem == _LI:
        figures = [replace(figure, rating="topic") for figure in PUBLISHED]
    source = _MIR if stem in (_LI, "yelp") else stem
    return tuple(
        figure
        for figure in figures
        if PurePath(figure.file).stem == source
        and score in (None, figure.score, _COMPUTED.get(figure.model))
        and rating in (None, figure.rating)
        and level in (None, figure.level)
    )


def lacking(file: str) -> tuple[str, ...]:
    """Return what a paper prints about a rated file and the package does not have, in words."""
    stem = "yelp" if PurePath(file).stem == _LI else PurePath(file).stem
    return tuple(figures for name, figures in _LACKING if PurePath(name).stem == stem)


def is_of_other_texts(figure: Published, file: str) -> bool:
    """Return whether a figure that is shown for a rated file is of other texts."""
    return figure.file == _MIR and PurePath(file).stem == _LI


def best_model(figures: Sequence[Published], kind: str = "", strict: bool = False) -> str | None:
    """Return the paper's own model with the highest correlation, by Pearson's r.

    Models without a Pearson's r in the paper are left out; baselines and ablations, where there
    is a model that is neither.

    Args:
        figures: Figures of one score, rating and level.
        kind: Regular expression for the start of the model's name, such as `"CTC D"`. One that
            matches no model is ignored, unless `strict`.
        strict: Whether to return None where no model is of the kind.

    Returns:
        Name of the model, or None if there is none.
    """
    pearson = [figure for figure in figures if figure.statistic == "pearson"]
    other = re.compile(r"\(baseline\)|weights=")
    own = [f for f in pearson if not other.search(f.source + f.model)] or pearson
    alike = [figure for figure in own if re.match(kind, figure.model)]
    best = max(alike if strict else alike or own, key=lambda figure: figure.value, default=None)
    return best.model if best else None


def _lines(paper: str) -> list[str]:
    return files(papers).joinpath(paper, "published_tables.txt").read_text("utf-8").splitlines()


def _read(paper: str) -> Iterator[Published]:
    """Parse the `published_tables.txt` of a paper."""
    for line in _lines(paper):
        if line.startswith(("% ", "! ")):
            continue
        if line.startswith("# "):
            file, scores, levels, source = line.removeprefix("# ").split(" | ")
            continue
        model, cells = line.split(": ")
        columns = product(scores.split(", "), levels.split(", "), _STATISTICS)
        for (score, level, statistic), cell in zip(columns, cells.split(), strict=True):
            if cell != "-":
                name, _, rating = score.partition(" with ")
                about = (file, name, rating or name, level)
                yield Published(*about, model, source, statistic, float(cell))


PUBLISHED = (*_read("ctrleval"), *_read("ctc"))
_LACKING = [
    line.removeprefix("! ").split(" | ")
    for line in (*_lines("ctrleval"), *_lines("ctc"))
    if line.startswith("! ")
]
