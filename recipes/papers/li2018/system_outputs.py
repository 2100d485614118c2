"""Outputs of style transfer systems, one for each test sentence that a system has rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrlreward.files import parse_json
from ctrlreward.models.words import separate_words
from ctrlreward.samples import Samples

_CHECKPOINT = "best_gm"


def named_files(systems: Sequence[str]) -> list[tuple[str, Path]]:
    """Return name and file of each `NAME=FILE` of a command line.

    Raises:
        ValueError: One is not of this form.
    """
    found = []
    for given in systems:
        name, has_file, file = given.partition("=")
        if not (name and has_file and file):
            raise ValueError(f"--system must be NAME=FILE, got {given!r}")
        found.append((name, Path(file)))
    return found


def output_rows(file: Path) -> list[tuple[str, str, str | None]]:
    """Read source, text, and target style or None of each line of a JSONL file.

    Lines have `source` and `text`, as `after.jsonl` of a `BeforeAfter`, or instead of `text` the
    `outputs` of several checkpoints, as `translations.jsonl` of a `TransferReport`, of which
    `best_gm` is taken. A `label` is the target style.

    Raises:
        ValueError: A line does not have these keys.
    """
    rows = []
    with open(file, encoding="utf-8") as lines:  # str.splitlines would also split at U+2028
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_output(parse_json(line, file, number), f"{file}:{number}"))
    return rows


def tokenized(samples: Samples) -> Samples:
    """Write texts and sources as tokenized corpora do, which the judges were trained on."""
    sources = samples.require("sources", "systems")
    return samples.replace(
        texts=[separate_words(text) for text in samples.texts],
        sources=[separate_words(source) for source in sources],
    )


def _output(row: Any, place: str) -> tuple[str, str, str | None]:
    record = row if isinstance(row, dict) else {}
    outputs = record.get("outputs")
    text = record.get("text", outputs.get(_CHECKPOINT) if isinstance(outputs, dict) else None)
    source, label = record.get("source"), record.get("label")
    if not (isinstance(text, str) and isinstance(source, str)):
        raise ValueError(
            f"{place} must have `source` and `text`, or `outputs` with `{_CHECKPOINT}`"
        )
    return source, text, label
