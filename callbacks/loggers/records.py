"""Scored samples as JSONL records and as table rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ctrlreward.files import finite_or_none, json_line, write_whole
from ctrlreward.samples import JSON_KEYS, Samples
from ctrlreward.scorers.base import Scores

Cell: TypeAlias = str | float | None


def write_scored_samples(path: Path, samples: Samples, scores: Mapping[str, Scores]) -> None:
    """Write one JSON record per sample: its columns, and `"scores": {name: value}`.

    The file is written atomically and synced to disk. `Samples.from_jsonl` reads it too. NaN and
    infinite scores are null, as JSON has no such numbers.

    Args:
        path: The file; its folders are created.
        samples: n samples.
        scores: Name → array of shape (n,).
    """
    columns = samples.columns()
    lines = []
    for i in range(len(samples)):
        record: dict[str, object] = {JSON_KEYS[name]: c[i] for name, c in columns.items()}
        record["scores"] = {name: finite_or_none(values[i]) for name, values in scores.items()}
        lines.append(json_line(record))
    write_whole(path, "".join(lines))


def read_scored_samples(path: Path) -> tuple[Samples, dict[str, Scores]]:
    """Return samples and scores that `write_scored_samples` wrote; null becomes NaN."""
    with open(path, encoding="utf-8") as file:  # str.splitlines would also split at U+2028
        records = [json.loads(line) for line in file]
    names = records[0]["scores"] if records else {}
    scores = {
        name: np.array([record["scores"][name] for record in records], dtype=np.float64)
        for name in names
    }
    return Samples.from_jsonl(path), scores


def sample_table(
    samples: Samples, scores: Mapping[str, Scores], rows: int
) -> tuple[list[str], list[list[Cell]]]:
    """Return the header and rows of a table with prompt, label, text and scores.

    The rows are evenly spaced over the samples and depend only on their number, so tables of
    different steps show the same prompts. Prompt and label are left out if the samples have none.

    Args:
        samples: n samples.
        scores: Name → array of shape (n,).
        rows: Number of rows; all samples if there are fewer.
    """
    columns = samples.columns()
    shown: dict[str, Sequence[str]] = {
        JSON_KEYS[name]: columns[name] for name in ("prompts", "labels") if name in columns
    }
    shown["text"] = samples.texts
    n = len(samples)
    picked = np.linspace(0, n - 1, min(rows, n)).round().astype(int).tolist()
    header = [*shown, *scores]
    body: list[list[Cell]] = [
        [
            *(column[i] for column in shown.values()),
            *(finite_or_none(v[i]) for v in scores.values()),
        ]
        for i in picked
    ]
    return header, body
