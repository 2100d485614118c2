"""Table 5 of Pang & Gimpel (2019): how well Acc, Sim and PP each agree with human ratings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctrlreward.recipes.papers.meta_eval.correlations import print_rows
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED
from ctrlreward.scorers.base import Scores

_MIDDLE = 3.0


def style_match(decisions: Scores, ratings: Scores) -> tuple[float, int]:
    """Return how often the classifier's decision matches the human rating of style.

    A rating above the middle of the scale, 3, says that the text has the target style, one below
    that it does not. A rating of 3 says neither and is left out.

    Args:
        decisions: 1 where the classifier finds the target style, else 0; NaN where it failed.
            Shape (n,).
        ratings: Rating of the style, 1 to 5; NaN if missing. Shape (n,).

    Returns:
        The share of matches, 0 to 1, and the number of texts that it is of; NaN and 0 if no text
        is left.

    Examples:
        >>> share, judged = style_match(np.array([1.0, 1.0, 0.0, 0.0]), np.array([5, 2, 1, 3]))
        >>> f"{share:.2f} of {judged}"
        '0.67 of 3'
    """
    judged = ~np.isnan(decisions) & ~np.isnan(ratings) & (ratings != _MIDDLE)
    if not judged.any():
        return float("nan"), 0
    return float(((decisions > 0.5) == (ratings > _MIDDLE))[judged].mean()), int(judged.sum())


def validity_record(
    rated: Rated, scores: Mapping[str, Scores], record: Mapping[str, Any]
) -> dict[str, Any]:
    """Return Table 5 for a rated file as JSON values, with the paper's figures.

    Args:
        rated: The rated file, with the ratings `sentiment`, `topic` and `grammaticality`.
        scores: Scores by name, with `accuracy`; arrays of shape (n,).
        record: Result of `report_correlations` with similarity and perplexity.
    """
    share, judged = style_match(scores["accuracy"], rated.ratings["sentiment"])
    accuracy = {"value": None if np.isnan(share) else share, "n": judged}
    rows: dict[str, dict[str, Any]] = {"accuracy": accuracy}
    for score, rating, sign in (("similarity", "topic", 1), ("perplexity", "grammaticality", -1)):
        (found,) = (
            row
            for row in record["correlations"]
            if (row["score"], row["rating"], row["level"]) == (score, rating, "sample")
        )
        value = found["spearman"]["value"]
        rows[score] = {"value": None if value is None else sign * value, "n": found["n"]}
    keys = ("published", "published_literature")
    paper = PUBLISHED["table_5"]
    return {name: row | dict(zip(keys, paper[name], strict=True)) for name, row in rows.items()}


def print_validity(record: Mapping[str, Any]) -> None:
    """Print `validity_record` next to the paper's figures."""
    title = "Table 5 of Pang & Gimpel (2019): agreement of each metric with human ratings"
    names = {
        "accuracy": "Acc matches the style (rating above or below 3)",
        "similarity": "Sim with content (topic), Spearman ρ",
        "perplexity": "-PP with fluency (grammaticality), Spearman ρ",
    }
    cells = []
    for key, name in names.items():
        row = record[key]
        shown = ("value", "published", "published_literature")
        values = [np.nan if row[of] is None else row[of] for of in shown]
        form = percent if key == "accuracy" else "{:.3f}".format
        cells.append([name, str(row["n"]), *(form(value) for value in values)])
    headings = ("metric and judgement", "outputs", "here", "in the paper, Yelp", "Literature")
    print_rows(title, headings, cells)


def percent(share: float) -> str:
    """Return a share of 0 to 1 in per cent, or a dash for NaN."""
    return "–" if np.isnan(share) else f"{share:.1%}"
