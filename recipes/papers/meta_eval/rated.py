"""`ctrlreward meta-eval rated`: any scores on the user's rated file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ctrlreward.recipes.papers.meta_eval.rated_files import Rated, optional_cells
from ctrlreward.recipes.papers.meta_eval.rated_report import (
    Outputs,
    PublishedModels,
    report_correlations,
    score_rated,
)
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.components import name_components
from ctrlreward.tables.columns import Columns, explained_columns, number_column, to_samples
from ctrlreward.tables.rows import Row, read_placed


def rated(
    data: Path,
    ratings: Sequence[str] = (),
    scorers: Sequence[Scorer] = (),
    names: list[str] | None = None,
    metrics: Sequence[str] = (),
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    cluster: str | None = None,
    system: str | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    published: PublishedModels = "best",
    log: Path | None = None,
) -> None:
    """Evaluate any scores on your own rated file.

    Args:
        data: The texts and ratings: a .jsonl, .csv or .parquet file.
        ratings: Columns of the ratings: `--ratings fluency overall`.
        scorers: The scorers and their options, as in `ctrlreward score`.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`).
        metrics: Columns of scores that the file already has, for example from `ctrlreward score`.
        columns: Column names of the file; null ignores a column (`--columns.prefix=null`).
        cluster: Column that related rows share, such as a prefix or document; the bootstrap draws
            clusters.
        system: Column of the system that wrote each text, for correlations at system level.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
        published: Figures of a paper about the file to print: best for its best model, or all for
            all in the package, with a line on those that it lacks.
        log: File of the scores so far, from which a repeated call continues.
    """
    if not (ratings and (scorers or metrics)):
        raise ValueError(
            "--ratings, and --scorers, --metrics (columns of the file) or both, are needed"
        )
    if scores and not scorers:
        raise ValueError("--scores needs --scorers: the file already has its --metrics")
    outputs = Outputs(output, scores, resamples, seed, published)
    rows, places = read_placed(data)
    existing = {name: number_column(rows, name, places) for name in metrics}
    # Without scorers, the texts are not used.
    samples = to_samples(rows, columns, places) if scorers else Samples([""] * len(rows))
    # As `ctrlreward score`, without the scores for which the file has no column.
    with explained_columns(list(rows[0])):
        components = name_components(scorers, names, samples) if scorers else {}
    duplicates = sorted(existing.keys() & components.keys())
    if duplicates:
        raise ValueError(f"{', '.join(duplicates)} is both a column and a score. Pass --names.")
    file = Rated(
        data.name,
        samples,
        {name: number_column(rows, name, places) for name in ratings},
        _clusters(rows, cluster) if cluster else None,
        optional_cells(rows, system) if system else None,
    )
    with explained_columns(list(rows[0])):
        values = existing | score_rated(file, components, outputs, log)
    report_correlations(file, values, components, outputs)


def _clusters(rows: list[Row], name: str) -> tuple[str, ...]:
    column = optional_cells(rows, name)
    for i, cluster in enumerate(column):
        if cluster is None:
            raise ValueError(f"{name}[{i}] is empty, must be the cluster of the row")
    return tuple(str(cluster) for cluster in column)
