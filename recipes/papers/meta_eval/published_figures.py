"""Correlations with human ratings that papers report, to stand beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ctrlreward.recipes.papers.ctc import published_tables as ctc
from ctrlreward.recipes.papers.ctrleval import published_tables as ctrleval


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


# Ratings in our readers whose name differs from the score's.
_RATINGS = {
    "engagingness": "engaging",
    "engagingness_mean": "engaging",
    "groundedness": "uses_knowledge",
    "preservation": "topic",
    "preservation_output": "topic",
    "preservation_source": "topic",
}

# No paper here has correlations with Li et al.'s ratings. CTC's are for other transfers of Yelp
# sentences, rated for Mir et al. (2019).
_NEAREST = {"human_ratings_yelp": "mir2019 yelp"}


def published(
    file: str, score: str | None = None, rating: str | None = None, level: str | None = None
) -> tuple[Published, ...]:
    """Return the figures for a rated file, in the order of the tables.

    Args:
        file: Name of the file; its suffix does not matter. For human_ratings_yelp.csv the figures
            are for other texts, as `Published.file` says.
        score: Only figures of this score.
        rating: Only figures for this rating.
        level: Only figures of this level.

    Examples:
        >>> figures = published("qags_xsum.json", score="consistency")
        >>> max(figures, key=lambda figure: figure.value).model
        'CTC D RoBERTa-large (XSUM)'
    """
    stem = PurePath(file).stem
    stem = _NEAREST.get(stem, stem)
    return tuple(
        figure
        for figure in PUBLISHED
        if PurePath(figure.file).stem == stem
        and score in (None, figure.score)
        and rating in (None, figure.rating)
        and level in (None, figure.level)
    )


def best_model(figures: Sequence[Published], kind: str = "") -> str | None:
    """Return the paper's own model with the highest correlation, by Pearson's r.

    Baselines and ablations are left out, and models for which the paper has no Pearson's r.

    Args:
        figures: Figures of one score, rating and level.
        kind: Start of the model's name, such as `"CTC D"`; a kind that has no figures is ignored.

    Returns:
        Name of the model, or None if there is none.
    """
    own = [
        figure
        for figure in figures
        if figure.statistic == "pearson"
        and "(baseline)" not in figure.source + figure.model
        and "weights=" not in figure.model
    ]
    alike = [figure for figure in own if figure.model.startswith(kind)]
    best = max(alike or own, key=lambda figure: figure.value, default=None)
    return best.model if best else None


def _read(tables: str) -> Iterator[Published]:
    """Parse the `TABLES` of a paper's `published_tables`."""
    for line in tables.strip().splitlines():
        if line.startswith("# "):
            file, score, level, source = line.removeprefix("# ").split(" | ")
            continue
        model, cells = line.split(": ")
        for statistic, cell in zip(("pearson", "spearman", "kendall"), cells.split(), strict=True):
            if cell != "-":
                rating = _RATINGS.get(score, score)
                yield Published(file, score, rating, level, model, source, statistic, float(cell))


PUBLISHED = (*_read(ctrleval.TABLES), *_read(ctc.TABLES))
