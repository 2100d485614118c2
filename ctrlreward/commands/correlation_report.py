"""What is said of scores beside human ratings: correlations, as a table, as JSON and a picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from ctrlreward.commands.formats.rated_files import PUBLISHED, Published, Rated
from ctrlreward.commands.chunked_scoring import arrow
from ctrlreward.commands.terminal import plain_console
from ctrlreward.functional.bootstrap import Estimate
from ctrlreward.functional.correlation import (
    RatingCorrelations,
    sample_correlations,
    system_correlations,
)
from ctrlreward.scorers.base import Scores, ScoreSpec

STATISTICS = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ-b"}

# The table's width where nothing says how wide the output is.
_WIDTH = 100


@dataclass(frozen=True)
class Judgement:
    """How one score agrees with one rating.

    Attributes:
        score: The score's name.
        rating: The rating's name.
        level: `"sample"` or `"system"`.
        found: The correlations.
        published: What papers found on the same file.
    """

    score: str
    rating: str
    level: str
    found: RatingCorrelations
    published: tuple[Published, ...]


def judge(rated: Rated, scores: Mapping[str, Scores], resamples: int, seed: int) -> list[Judgement]:
    """Every score beside every rating, over rows and, for three systems or more, over systems.

    Args:
        rated: The file.
        scores: Each of shape (n,); NaN for samples that failed.
        resamples: Draws of the bootstrap for the 95 % intervals.
        seed: Of the draws.
    """
    several = len({system for system in rated.systems or () if system is not None}) >= 3
    judgements = []
    for level in ("sample", "system") if several else ("sample",):
        for score, values in scores.items():
            for rating, ratings in rated.ratings.items():
                found = _correlations(rated, level, values, ratings, resamples, seed)
                key = (rated.file, score, rating, level)
                published = (p for p in PUBLISHED if (p.file, p.score, p.rating, p.level) == key)
                judgements.append(Judgement(score, rating, level, found, tuple(published)))
    return judgements


def print_judgements(
    judgements: Sequence[Judgement], rated: Rated, specs: Mapping[str, ScoreSpec]
) -> None:
    """Prints a table for each level, with the published figure where there is one.

    Args:
        judgements: What `judge` gave.
        rated: The file.
        specs: Directions of those scores whose direction is known.
    """
    console = plain_console(None if sys.stdout.isatty() else _WIDTH)
    clusters = len(set(rated.clusters or range(len(rated.samples))))
    for level in dict.fromkeys(judgement.level for judgement in judgements):
        table = Table(title=f"{rated.file}, {level} level", box=box.SIMPLE, title_justify="left")
        table.add_column("score, rating", overflow="fold")
        for heading in (f"{level}s", *STATISTICS.values()):
            table.add_column(heading, justify="right", overflow="fold")
        for judgement in judgements:
            if judgement.level == level:
                table.add_row(*_cells(judgement, specs))
        console.print(table)
    drawn = f"the {clusters} clusters of rows" if rated.clusters else "the rows"
    print(f"Intervals: 95 %, percentile bootstrap over {drawn}.")
    if not any(judgement.level == "system" for judgement in judgements):
        print("No system level: the file does not tell three systems or more apart.")


def to_record(
    judgements: Sequence[Judgement], rated: Rated, resamples: int, seed: int
) -> dict[str, Any]:
    """The judgements as JSON values; NaN is null."""
    rows = []
    for judgement in judgements:
        found = judgement.found
        row: dict[str, Any] = {name: getattr(judgement, name) for name in ("score", "rating")}
        row |= {"level": judgement.level, "n": found.n, "failed": found.failed, "note": found.note}
        for name, estimate in _estimates(found).items():
            ends = estimate._asdict()
            row[name] = {key: None if np.isnan(end) else end for key, end in ends.items()}
        row["published"] = [asdict(figure) for figure in judgement.published]
        rows.append(row)
    settings = {"confidence": 0.95, "resamples": resamples, "seed": seed}
    clusters = len(set(rated.clusters)) if rated.clusters else None
    return {"file": rated.file, "clusters": clusters, **settings, "correlations": rows}


def draw_scatter(
    judgements: Sequence[Judgement], rated: Rated, scores: Mapping[str, Scores], path: Path
) -> None:
    """Draws every score over every rating, a panel each, as a PNG.

    Raises:
        ValueError: The file is no .png.
        ImportError: matplotlib is not installed.
    """
    require_plot(path)
    from matplotlib.figure import Figure

    shape = (len(scores), len(rated.ratings))
    figure = Figure(figsize=(3.2 * shape[1], 2.8 * shape[0]), layout="constrained")
    panels = figure.subplots(*shape, squeeze=False).flat
    samples = [judgement for judgement in judgements if judgement.level == "sample"]
    for panel, judgement in zip(panels, samples, strict=True):
        panel.scatter(
            rated.ratings[judgement.rating],
            scores[judgement.score],
            s=9,
            alpha=0.35,
            color="#2563eb",
            linewidths=0,
        )
        tau = judgement.found.kendall.value
        panel.set_title(f"τ-b = {tau:.3f}, n = {judgement.found.n}", fontsize=9)
        panel.set_xlabel(f"rated {judgement.rating}".replace("_", " "), fontsize=9)
        panel.set_ylabel(judgement.score.replace("_", " "), fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(color="#e4e4e7", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def require_plot(path: Path) -> None:
    """Raises before anything is scored, not after, where a plot can't be drawn.

    Raises:
        ValueError: The file is no .png.
        ImportError: matplotlib is not installed.
    """
    if path.suffix != ".png":
        raise ValueError(f"plot = {path}: give a file that ends in .png")
    if find_spec("matplotlib") is None:
        raise ImportError("a plot needs matplotlib: pip install 'ctrlreward[demo]'")


def _correlations(
    rated: Rated, level: str, scores: Scores, ratings: Scores, resamples: int, seed: int
) -> RatingCorrelations:
    clusters = rated.clusters
    if level == "sample":
        return sample_correlations(scores, ratings, clusters, resamples=resamples, seed=seed)
    systems = rated.systems or ()
    return system_correlations(scores, ratings, systems, clusters, resamples=resamples, seed=seed)


def _estimates(found: RatingCorrelations) -> dict[str, Estimate]:
    return {"pearson": found.pearson, "spearman": found.spearman, "kendall": found.kendall}


def _cells(judgement: Judgement, specs: Mapping[str, ScoreSpec]) -> list[str]:
    """A row of the table: values above their intervals and what was published."""
    score, found = judgement.score, judgement.found
    direction = f" {arrow(specs[score])}" if score in specs else ""
    cells = [f"{score}{direction}\n  with {judgement.rating}", f"{found.n}\n{found.failed} failed"]
    if found.note:
        cells[0] += f"\n  {found.note}"
    for name, estimate in _estimates(found).items():
        known = not np.isnan(estimate.low)
        interval = f"{estimate.low:.2f} to {estimate.high:.2f}" if known else "–"
        lines = [f"{estimate.value:.4f}", interval]
        for figure in judgement.published:
            if figure.statistic == name:
                lines.append(f"{figure.value:.4f} ({figure.by})")
        cells.append("–" if np.isnan(estimate.value) else "\n".join(lines))
    return cells
