"""CTC's ablations on a rated file, Tables 1, 2, 3 and F.5, and all ratings of dialogs, Table F.6.

They correlate scores that are there already: no model runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.recipes.papers.meta_eval.correlations import cell, print_rows
from ctrlreward.recipes.papers.meta_eval.published_figures import (
    best_model,
    is_of_other_texts,
    published,
)
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.recipes.papers.meta_eval.rating_correlation import correlate
from ctrlreward.scorers.base import Scores

# The paper's aligners, as models are named in its tables.
_ALIGNERS = ("CTC E", "CTC D", "CTC R")


class Ablation(NamedTuple):
    """A table of the paper.

    Attributes:
        table: Its number.
        ratings: The rating by which it judges; in a file without it, the next.
        variants: Name of a row → the scores that it sums.
    """

    table: str
    ratings: tuple[str, ...]
    variants: Mapping[str, tuple[str, ...]]


ABLATIONS = (
    Ablation(
        "1",
        ("relevance",),
        {
            "r → y": ("relevance_reference",),
            "y → x": ("relevance_output",),
            "r → y + y → x": ("relevance_reference", "relevance_output"),
            "r → y × y → x": ("relevance",),
        },
    ),
    Ablation(
        "2",
        ("preservation", "topic"),
        {
            "y → x": ("preservation_output",),
            "x → y": ("preservation_source",),
            "both": ("preservation",),
        },
    ),
    Ablation("3", ("engaging",), {"sum": ("engagingness",), "mean": ("engagingness_mean",)}),
    # Each rating by its own formula and by the other's.
    Ablation("F.5", ("engaging",), {"eq. 5": ("engagingness",), "eq. 6": ("groundedness",)}),
    Ablation("F.5", ("uses_knowledge",), {"eq. 6": ("groundedness",), "eq. 5": ("engagingness",)}),
)


def ablate(rated: Rated, scores: Mapping[str, Scores], suffix: str = "") -> list[dict[str, Any]]:
    """Correlate the variants of a score with its rating, as Tables 1, 2, 3 and F.5 do.

    Args:
        rated: The rated file, n rows.
        scores: Arrays of shape (n,) by name. A table needs all its scores.
        suffix: Regular expression for the end of the names of the paper's models: of those with
            as many references, or trained on the file's own task.

    Returns:
        For each table and row: `table`, `rating`, `variant`, the statistics of `correlate`, and
        `published`, the paper's Pearson's r by aligner with the best encoder; None if we don't
        have the figure.
    """
    rows: list[dict[str, Any]] = []
    for table, ratings, variants in ABLATIONS:
        rating = next((name for name in ratings if name in rated.ratings), None)
        if rating is None or not scores.keys() >= {name for v in variants.values() for name in v}:
            continue
        for variant, names in variants.items():
            total = np.sum([scores[name] for name in names], axis=0)
            figures = {
                aligner: _figure(rated.file, names, rating, aligner + suffix)
                for aligner in _ALIGNERS
            }
            row = {"table": table, "rating": rating, "variant": variant}
            rows.append(row | correlate(total, rated.ratings[rating]) | {"published": figures})
    return rows


def print_ablations(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    """Print the result of `ablate` for a file, a table of Pearson's r for each of the paper's."""
    for number, rating in dict.fromkeys((row["table"], row["rating"]) for row in rows):
        cells = [
            [row["variant"], *map(cell, (row["pearson"], *row["published"].values()))]
            for row in rows
            if (row["table"], row["rating"]) == (number, rating)
        ]
        print_rows(f"CTC Table {number}: Pearson r, {rating}", ["", "ours", *_ALIGNERS], cells)
    if rows and any(is_of_other_texts(figure, file) for figure in published(file)):
        print("The paper's figures are for transfers of other Yelp sentences (Mir et al. 2019).")


def correlate_ratings(rated: Rated, scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Correlate every score with every rating, as Table F.6 does for dialogs.

    Returns:
        For each rating and score: `rating`, `score`, the statistics of `correlate`, and
        `published`, the Pearson's r of the paper's word length; None for other scores.
    """
    return [
        {"rating": rating, "score": score, **correlate(values, ratings)}
        | {"published": _figure(rated.file, (score,), rating, "word length")}
        for rating, ratings in rated.ratings.items()
        for score, values in scores.items()
    ]


def print_ratings(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the result of `correlate_ratings`: Pearson's r, a row for each score."""
    ratings = list(dict.fromkeys(row["rating"] for row in rows))
    cells = []
    for score in dict.fromkeys(row["score"] for row in rows):
        found = [row for row in rows if row["score"] == score]
        cells.append([score, *(cell(row["pearson"]) for row in found)])
        if any(row["published"] for row in found):
            cells.append(["  in the paper", *(cell(row["published"]) for row in found)])
    headings = ["score", *(rating.replace("_", " ") for rating in ratings)]
    print_rows("CTC Table F.6: Pearson r, every rating", headings, cells)


def _figure(file: str, names: Sequence[str], rating: str, kind: str) -> float | None:
    """Return the paper's Pearson's r of one score by its best model of a kind."""
    if len(names) > 1:
        return None
    figures = published(file, names[0], rating, "sample")
    alike = [figure for figure in figures if figure.statistic == "pearson"]
    best = best_model(alike, kind, strict=True)
    return next((figure.value for figure in alike if figure.model == best), None)
