"""Steps of `ctrlreward meta-eval` that all rated files share: score, correlate, print, write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from ctrlreward.arguments import check_ending, one_of
from ctrlreward.failures import rows_named
from ctrlreward.files import check_writable, write_whole
from ctrlreward.recipes.papers.meta_eval.correlations import (
    correlate_all,
    print_correlations,
    to_json_record,
)
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.samples import JSON_KEYS
from ctrlreward.scorers.base import Component, Scores
from ctrlreward.scorers.parts import samples_log, score_parts
from ctrlreward.tables.rows import Row, check_suffix, encode_rows

# Models of a paper whose figures are printed.
PublishedModels: TypeAlias = Literal["best", "all"]


@dataclass(frozen=True)
class Outputs:
    """Output files and settings of the bootstrap.

    Attributes:
        output: JSON file for the correlations.
        scores: File for the scores of each row, .jsonl, .csv or .parquet.
        resamples: Bootstrap resamples, 1 or more.
        seed: Seed of the bootstrap, 0 or more.
        published: `"best"` prints the papers' best model of the same kind below our figures,
            `"all"` all that the package has. The JSON file always has all.

    Raises:
        ValueError: A file has an unknown suffix or is a folder, or a number is out of range.
        OSError: A file can't be written.
        ImportError: A package that a file needs is not installed.
    """

    output: Path | None
    scores: Path | None
    resamples: int
    seed: int
    published: PublishedModels = "best"

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ValueError(f"resamples must be 1 or more, got {self.resamples}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")
        one_of("published", self.published, ("best", "all"))
        check_ending("output", self.output, ".json")
        if self.scores is not None:
            check_suffix(self.scores)
        for path in (self.output, self.scores):
            if path is not None:
                check_writable(path)


def score_rated(
    rated: Rated,
    components: Mapping[str, Component],
    outputs: Outputs,
    log: Path | None = None,
) -> dict[str, Scores]:
    """Score a rated file, and write texts, `rating/<name>` and `score/<name>` if a file is given.

    Scores are kept in the log, if it is given, from which a repeated call continues.

    Returns:
        Arrays of shape (n,) by name; NaN for samples that failed.

    Raises:
        ValueError: A rating is infinite.
    """
    for name, ratings in rated.ratings.items():
        if np.isinf(ratings).any():
            row = int(np.flatnonzero(np.isinf(ratings))[0])
            raise ValueError(f"{rated.file}: {name}[{row}] must be finite, got inf")
    places = [f"sample {i}" for i in range(len(rated.samples))]
    with rows_named(places):
        scores = score_parts(
            components, rated.samples, samples_log(log, components, rated.samples), places
        )
    if outputs.scores is not None:
        columns = {f"rating/{name}": values for name, values in rated.ratings.items()}
        columns |= {f"score/{name}": values for name, values in scores.items()}
        write_whole(outputs.scores, encode_rows(outputs.scores.suffix, _to_rows(rated), columns))
    return scores


def report_correlations(
    rated: Rated,
    scores: Mapping[str, Scores],
    components: Mapping[str, Component],
    outputs: Outputs,
    kind: str = "",
) -> dict[str, Any]:
    """Correlate scores with ratings, print a table, and write the requested files.

    Args:
        rated: The rated file, n rows.
        scores: Arrays of shape (n,) by name.
        components: Components of the scores whose direction is known, by name.
        outputs: Files to write, and settings of the bootstrap.
        kind: The papers' models that are most like ours, such as `"CTC D"` (see `best_model`).

    Returns:
        The content of the JSON file.
    """
    pairs = correlate_all(rated, scores, outputs.resamples, outputs.seed)
    record = to_json_record(pairs, rated, outputs.resamples, outputs.seed)
    write_record(record, outputs)
    specs = {name: component.spec for name, component in components.items()}
    print_correlations(pairs, rated, specs, kind, outputs.published == "all")
    return record


def write_record(record: dict[str, Any], outputs: Outputs) -> None:
    """Write the JSON file, if one is requested."""
    if outputs.output is not None:
        write_whole(outputs.output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _to_rows(rated: Rated) -> list[Row]:
    columns = {JSON_KEYS[name]: column for name, column in rated.samples.columns().items()}
    if rated.systems is not None:
        columns["system"] = rated.systems
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
