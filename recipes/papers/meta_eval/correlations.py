"""Correlations of scores with human ratings, as a table and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich import box
from rich.table import Table

from ctrlreward.command_line.terminal import direction_arrow, plain_console
from ctrlreward.extras import import_extra
from ctrlreward.files import check_writable
from ctrlreward.recipes.papers.meta_eval.published_figures import (
    Published,
    best_model,
    is_of_other_texts,
    lacking,
    published,
)
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.recipes.papers.meta_eval.rating_correlation import (
    RatingCorrelations,
    sample_correlations,
    system_correlations,
)
from ctrlreward.scorers.base import Scores, ScoreSpec

STATISTICS = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ-b"}

# Columns of the printed table when the output is not a terminal.
_WIDTH = 100


@dataclass(frozen=True)
class ScoreAndRating:
    """Correlations of one score with one rating.

    Attributes:
        score: The score's name.
        rating: The rating's name.
        level: `"sample"` or `"system"`.
        correlations: Over rows or over the systems' means.
        published: Correlations that papers report for the same file, of all their models.
    """

    score: str
    rating: str
    level: str
    correlations: RatingCorrelations
    published: tuple[Published, ...]


def correlate_all(
    rated: Rated, scores: Mapping[str, Scores], resamples: int, seed: int
) -> list[ScoreAndRating]:
    """Correlate every score with every rating.

    The sample level is over rows. The system level is over the means of systems, and is left out
    if the file names fewer than three systems.

    Args:
        rated: The rated file, n rows.
        scores: Arrays of shape (n,) by name; NaN for samples that failed.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
    """
    systems = {system for system in rated.systems or () if system is not None}
    pairs = []
    for level in ("sample", "system") if len(systems) >= 3 else ("sample",):
        for score, values in scores.items():
            for rating, ratings in rated.ratings.items():
                correlations = _correlations(rated, level, values, ratings, resamples, seed)
                figures = published(rated.file, score, rating, level)
                pairs.append(ScoreAndRating(score, rating, level, correlations, figures))
    return pairs


def print_correlations(
    pairs: Sequence[ScoreAndRating],
    rated: Rated,
    specs: Mapping[str, ScoreSpec],
    kind: str = "",
    all_published: bool = False,
) -> None:
    """Print a table per level, with published values below ours.

    Args:
        pairs: Result of `correlate_all`.
        rated: The rated file.
        specs: Specs of the scores whose direction is known, by name.
        kind: The papers' models to show (see `best_model`).
        all_published: Show all models of the papers instead of the best of the kind.
    """
    clusters = len(set(rated.clusters or range(len(rated.samples))))
    for level in dict.fromkeys(pair.level for pair in pairs):
        rows = []
        for pair in pairs:
            if pair.level == level:
                rows.append(_cells(pair, specs))
                rows += _published_rows(pair, rated.file, kind, all_published)
        headings = ("score, rating", f"{level}s", *STATISTICS.values())
        print_rows(f"{rated.file}, {level} level", headings, rows)
    units = f"the {clusters} clusters of rows" if rated.clusters else "the rows"
    print(f"Intervals: 95 %, percentile bootstrap over {units}.")
    if all_published:
        for figures in lacking(rated.file):
            print(f"Printed by the paper, but not in this package: {figures}.")
    elif any(pair.published for pair in pairs):
        print(
            "Published: the paper's best model of the same kind. --published all shows all of its "
            "figures that the package has."
        )
    if rated.inferred:
        names = ", ".join(dict.fromkeys(map(str, rated.systems or ())))
        print(f"Systems: {names}, inferred from the position of the rows; the file names none.")
    if not any(pair.level == "system" for pair in pairs):
        print("No system level: the file names fewer than three systems.")


def print_rows(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: int = 1,
    whole: bool = False,
) -> None:
    """Print a table as wide as the terminal, numbers at the right, the `left` columns at the left.

    `whole` keeps the lines of the first column whole, where all do not fit.
    """
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for place, heading in enumerate(headings):
        side: Literal["left", "right"] = "left" if place < left else "right"
        no_wrap = whole and place == 0
        table.add_column(heading, justify=side, overflow="fold", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    plain_console(None if sys.stdout.isatty() else _WIDTH).print(table)


def cell(value: float | None) -> str:
    """Return a correlation with four digits, or a dash for None."""
    return "–" if value is None else f"{value:.4f}"


def to_json_record(
    pairs: Sequence[ScoreAndRating], rated: Rated, resamples: int, seed: int
) -> dict[str, Any]:
    """Return the correlations and the bootstrap's settings as JSON values; NaN is null."""
    rows = []
    for pair in pairs:
        values = pair.correlations
        row: dict[str, Any] = {"score": pair.score, "rating": pair.rating, "level": pair.level}
        row |= {"n": values.n, "failed": values.failed, "note": values.note}
        for name in STATISTICS:
            ends = getattr(values, name)._asdict()
            row[name] = {key: None if np.isnan(end) else end for key, end in ends.items()}
        row["published"] = [asdict(figure) for figure in pair.published]
        rows.append(row)
    settings: dict[str, Any] = {"confidence": 0.95, "resamples": resamples, "seed": seed}
    clusters = len(set(rated.clusters)) if rated.clusters else None
    if rated.systems:
        settings["systems_inferred"] = rated.inferred
    return {"file": rated.file, "clusters": clusters, **settings, "correlations": rows}


def require_plot(path: Path) -> None:
    """Raise if a plot can't be drawn and written, before any text is scored."""
    if path.suffix != ".png":
        raise ValueError(f"plot must be a file that ends in .png, got {path}")
    import_extra("matplotlib", f"plot = {path}")
    check_writable(path)


def _correlations(
    rated: Rated, level: str, scores: Scores, ratings: Scores, resamples: int, seed: int
) -> RatingCorrelations:
    clusters = rated.clusters
    if level == "sample":
        return sample_correlations(scores, ratings, clusters, resamples=resamples, seed=seed)
    systems = rated.systems or ()
    return system_correlations(scores, ratings, systems, clusters, resamples=resamples, seed=seed)


def _cells(pair: ScoreAndRating, specs: Mapping[str, ScoreSpec]) -> list[str]:
    """Return a table row: values, with their intervals below."""
    values = pair.correlations
    direction = f" {direction_arrow(specs[pair.score])}" if pair.score in specs else ""
    cells = [
        f"{pair.score}{direction}\n  with {pair.rating}",
        f"{values.n}\n{values.failed} failed",
    ]
    if values.note:
        cells[0] += f"\n  {values.note}"
    for value, low, high in (values.pearson, values.spearman, values.kendall):
        interval = "–" if np.isnan(low) else f"{low:.2f} to {high:.2f}"
        cells.append("–" if np.isnan(value) else f"{value:.4f}\n{interval}")
    return cells


def _published_rows(
    pair: ScoreAndRating, file: str, kind: str, all_published: bool
) -> Iterator[list[str]]:
    """Yield a table row for each model of a paper: its name and tables, and its values."""
    best = best_model(pair.published, kind)
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for figure in pair.published:
        if all_published or figure.model == best:
            source = figure.source
            if is_of_other_texts(figure, file):
                source += f", {figure.file}"
            rows.setdefault((figure.model, source), {})[figure.statistic] = figure.value
    for (model, source), values in rows.items():
        cells = [f"{values[name]:.4f}" if name in values else "–" for name in STATISTICS]
        yield [f"  {model}\n  ({source})", "", *cells]
