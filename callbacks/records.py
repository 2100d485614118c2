"""Scored samples as JSONL records and as the rows of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from pytorch_lightning.loggers import Logger, WandbLogger

from ctrlreward.files import write_whole
from ctrlreward.samples import JSON_KEYS, Samples
from ctrlreward.scorers.base import Scores

Cell: TypeAlias = str | float | None


def write_records(path: Path, samples: Samples, scores: Mapping[str, Scores]) -> None:
    """Writes one JSON record a sample: its columns, and `"scores": {name: value}`.

    `Samples.from_jsonl` reads the file back. It appears whole or not at all, and is on the disk
    when this returns. A score that is NaN or infinite, which JSON has no word for, is null.

    Args:
        path: The file; its folders are made.
        samples: n samples.
        scores: Arrays of shape (n,), by name.
    """
    columns = samples.columns()
    lines = []
    for i in range(len(samples)):
        record: dict[str, object] = {JSON_KEYS[name]: c[i] for name, c in columns.items()}
        record["scores"] = {name: _cell(values[i]) for name, values in scores.items()}
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_whole(path, "".join(lines))


def read_records(path: Path) -> tuple[Samples, dict[str, Scores]]:
    """Samples and scores as `write_records` wrote them; null is NaN."""
    with open(path, encoding="utf-8") as file:  # str.splitlines would part lines at U+2028 too
        records = [json.loads(line) for line in file]
    names = records[0]["scores"] if records else {}
    scores = {
        name: np.array([record["scores"][name] for record in records], dtype=np.float64)
        for name in names
    }
    return Samples.from_jsonl(path), scores


def table(
    samples: Samples, scores: Mapping[str, Scores], rows: int
) -> tuple[list[str], list[list[Cell]]]:
    """The header and at most `rows` rows: prompt, label where there is one, text, each score.

    The rows are spread over all samples, always the same ones for the same number of samples, so
    that tables of different steps can be read side by side.
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
        [*(column[i] for column in shown.values()), *(_cell(v[i]) for v in scores.values())]
        for i in picked
    ]
    return header, body


def log_table(
    loggers: Iterable[Logger],
    key: str,
    samples: Samples,
    scores: Mapping[str, Scores],
    rows: int,
    step: int,
) -> None:
    """Logs the `table` of samples and scores at a step, where a logger is Weights & Biases'."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            columns, data = table(samples, scores, rows)
            logger.log_table(key=key, columns=columns, data=data, step=step)


def _cell(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
