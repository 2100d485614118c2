"""Scores correlated with all ratings of a file, as a table and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box

from ctrlreward.command_line.terminal import direction_arrow, number_table, plain_console
from ctrlreward.files import finite_or_none
from ctrlreward.ratings.correlations import STATISTICS, RatingCorrelations, rating_correlations
from ctrlreward.ratings.rated_files import Rated
from ctrlreward.scorers.base import Scores, ScoreSpec


def report_correlations(
    rated: Rated,
    scores: Mapping[str, Scores],
    specs: Mapping[str, ScoreSpec],
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Correlate every score with every rating, print a table per level, and return JSON values.

    The sample level is over rows. The system level is over the means of systems, where the file
    names three or more.

    Args:
        rated: The rated file, n rows.
        scores: Arrays of shape (n,) by name; NaN for samples that failed.
        specs: Specs of the scores whose direction is known, by name.
        resamples: Bootstrap draws for the 95 % intervals.
        seed: Seed of the bootstrap.
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
                record = {"score": score, "rating": rating, "level": level, "n": found.n}
                record |= {"failed": found.failed, "note": found.note}
                for name, estimate in found.estimates.items():
                    ends = estimate._asdict().items()
                    record[name] = {end: finite_or_none(value) for end, value in ends}
                records.append(record)
                lines.append(_cells(f"{score}{arrow}\n  with {rating}", found))
        title = f"{rated.file}, {level} level"
        print_table(title, ["score, rating", f"{level}s", *STATISTICS.values()], lines)
    clusters = len(set(rated.clusters)) if rated.clusters else None
    drawn = f"the {clusters} clusters of rows" if clusters else "the rows"
    print(f"Intervals: 95 %, percentile bootstrap over {drawn}.")
    if "system" not in levels:
        print("No system level: the file names fewer than three systems.")
    settings = {"confidence": 0.95, "resamples": resamples, "seed": seed}
    return {"file": rated.file, "clusters": clusters, **settings, "correlations": records}


def print_table(
    title: str, headings: Sequence[str], lines: Sequence[Sequence[str]], names: int = 1
) -> None:
    """Print a table as wide as the terminal, with `names` columns on the left."""
    options: dict[str, Any] = {"title": title, "title_justify": "left", "box": box.SIMPLE}
    table = number_table(headings[:names], headings[names:], **options)
    for line in lines:
        table.add_row(*line)
    plain_console(None if sys.stdout.isatty() else 100).print(table)


def _cells(name: str, found: RatingCorrelations) -> list[str]:
    cells = [f"{name}\n  {found.note}".rstrip(), f"{found.n}\n{found.failed} failed"]
    for value, low, high in found.estimates.values():
        interval = "–" if np.isnan(low) else f"{low:.2f} to {high:.2f}"
        cells.append("–" if np.isnan(value) else f"{value:.4f}\n{interval}")
    return cells
