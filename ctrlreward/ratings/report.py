"""Scores correlated with all ratings of a file, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrlreward.command_line.terminal import direction_arrow, printable
from ctrlreward.ratings.correlations import STATISTICS, rating_correlations
from ctrlreward.ratings.rated_files import Rated
from ctrlreward.scorers.base import Scores, ScoreSpec


def report_correlations(
    rated: Rated,
    scores: Mapping[str, Scores],
    specs: Mapping[str, ScoreSpec],
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Correlate every score with every rating, print a table per level, and return the figures.

    The sample level is over rows. The system level is over the means of systems, where the file
    names three or more. `scores` are arrays of shape (n,) by name, NaN for samples that failed, and
    `specs` those of the scores whose direction is known.
    """
    levels: dict[str, tuple[str | None, ...] | None] = {"sample": None}
    if len({*(rated.systems or ())} - {None}) >= 3:
        levels["system"] = rated.systems
    records: list[dict[str, Any]] = []
    for level, systems in levels.items():
        lines = []
        for score, values in scores.items():
            arrow = f" {direction_arrow(specs[score])}" if score in specs else ""
            for rating, ratings in rated.ratings.items():
                found = rating_correlations(
                    values, ratings, rated.clusters, systems, resamples, seed
                )
                named = {"score": score, "rating": rating, "level": level}
                about = {"n": found.n, "failed": found.failed, "note": found.note}
                records.append({**named, **about, **found.estimates})
                label = f"{score}{arrow}, {rating}{': ' if found.note else ''}{found.note}"
                cells = [cell(*estimate) for estimate in found.estimates.values()]
                lines.append([label, str(found.n), str(found.failed), *cells])
        headings = ["score, rating", f"{level}s", "failed", *STATISTICS.values()]
        print_table(f"{rated.file}, {level} level", headings, lines)
    clusters = len(set(rated.clusters)) if rated.clusters else None
    drawn = f"the {clusters} clusters of rows" if clusters else "the rows"
    print(f"Intervals: 95 %, percentile bootstrap over {drawn}.")
    if "system" not in levels:
        print("No system level: the file names fewer than three systems.")
    settings = {"confidence": 0.95, "resamples": resamples, "seed": seed}
    return {"file": rated.file, "clusters": clusters, **settings, "correlations": records}


def cell(value: float | None, low: float = np.nan, high: float = np.nan) -> str:
    """Return `0.5100 (0.40 to 0.60)`, a correlation and its interval if there is one, else `–`."""
    if value is None or np.isnan(value):
        return "–"
    return f"{value:.4f}" + ("" if np.isnan(low) else f" ({low:.2f} to {high:.2f})")


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a title and a table."""
    print(printable(f"\n{title}\n\n{markdown_table(header, rows)}"))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [":".ljust(widths[0], "-"), *(":".rjust(width, "-") for width in widths[1:])]
    lines = []
    for first, *others in (header, rule, *rows):
        right = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append(" | ".join([first.ljust(widths[0]), *right]))
    return "\n".join(f"| {line} |" for line in lines)
