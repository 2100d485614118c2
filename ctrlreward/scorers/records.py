"""Scored samples as JSONL records and as table rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.failures import UnreadableText
from ctrlreward.files import json_line, none_for_nan, read_jsonl, without_nan, write_whole
from ctrlreward.samples import JSON_KEYS, Samples, records_of, samples_of
from ctrlreward.scorers.base import Component, Scorer, Scores

Cell: TypeAlias = str | float | None

TABLE_ROWS = 16


def write_scored_samples(
    path: str | PathLike[str],
    samples: Samples,
    scores: Mapping[str, Scores],
    by_prompt: Mapping[str, Scores] | None = None,
    explanations: Mapping[int, Any] | None = None,
    reasons: Mapping[str, Sequence[str]] | None = None,
    measure: str = "",
) -> None:
    """Write a JSON record of each of n samples: its columns, and `"scores": {name: value}`.

    NaN and infinite scores, (n,), are null. `by_prompt`, (prompts,), are values that are not means,
    in the first record of each prompt; `measure` is in the first of all.
    """
    columns = {name: none_for_nan(values) for name, values in scores.items()}
    figures = {name: none_for_nan(values) for name, values in (by_prompt or {}).items()}
    prompts = len(next(iter(figures.values()), ()))
    lines = []
    for i, record in enumerate(records_of(samples)):
        record["scores"] = {name: column[i] for name, column in columns.items()}
        place, rest = divmod(i * prompts, len(samples))
        if figures and not rest:
            record["by_prompt"] = {name: row[place] for name, row in figures.items()}
        if explanations and i in explanations:
            record["explanation"] = explanations[i]
        if reasons:
            record["reasons"] = {name: texts[i] for name, texts in reasons.items()}
        if measure and not i:
            record["measure"] = measure
        lines.append(json_line(record))
    write_whole(Path(path), "".join(lines))


def explain_some(
    components: Mapping[str, Component], samples: Samples, count: int = 8
) -> dict[int, dict[str, Any]]:
    """Return row → name → explanation of evenly spaced samples, as plain data, NaN as None."""
    wanted: dict[Scorer, set[str]] = {}
    for component in components.values():
        wanted.setdefault(component.scorer, set()).add(component.name)
    rows = evenly_spaced(len(samples), count) if len(samples) else []
    found: dict[int, dict[str, Any]] = {row: {} for row in rows}
    for scorer, names in wanted.items():
        others = scorer.specs.keys() - names  # aspects that are not a component
        for row in rows:
            with suppress(UnreadableText):
                (named,) = scorer.explain(samples[[row]])
                found[row] |= {n: asdict(each) for n, each in named.items() if n not in others}
    return {row: without_nan(named) for row, named in found.items() if named}


class ScoredFile(NamedTuple):
    """Content of a file of `write_scored_samples`: n samples, and by name n scores or reasons.

    `by_prompt` are values of prompts that are not means, shape (prompts,). Null is NaN. `measure`
    is "" if it is unknown.
    """

    samples: Samples
    scores: dict[str, Scores]
    by_prompt: dict[str, Scores]
    reasons: dict[str, list[str]]
    measure: str = ""


def read_scored_file(path: str | PathLike[str]) -> ScoredFile:
    """Read a file of `write_scored_samples`; a ValueError names one of another form."""
    records = read_jsonl(Path(path))
    if not records:
        return ScoredFile(Samples([]), {}, {}, {})
    try:
        told = [each.get("reasons", {}) for each in records]
        return ScoredFile(
            samples_of(records, path),
            _columns([each["scores"] for each in records]),
            _columns([row for each in records if (row := each.get("by_prompt")) is not None]),
            {n: [row.get(n, "") for row in told] for n in dict.fromkeys(chain(*told))},
            str(records[0].get("measure", "")),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of samples with scores: {error}") from None


def _columns(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Scores]:
    names = rows[0] if rows else ()
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}


def evenly_spaced(n: int, count: int) -> list[int]:
    """Return at most `count` of n rows, the first and the last of them included."""
    return np.linspace(0, n - 1, min(count, n)).round().astype(int).tolist()


def sample_table(
    samples: Samples, scores: Mapping[str, Scores], reasons: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[list[Cell]]]:
    """Return the header and 16 evenly spaced rows of a table: prompt, label, text, scores, reasons.

    Tables of different steps show the same rows. `reasons`, score → n texts, are the columns
    `<score>_reason`.
    """
    columns = samples.columns()
    names = [name for name in ("prompts", "labels", "texts") if name in columns]
    numbers = [none_for_nan(values) for values in scores.values()]
    texts = [[*map(str, columns[name])] for name in names]  # W&B knows no other class of strings
    shown: list[Sequence[Any]] = [*texts, *numbers, *reasons.values()]
    rows = evenly_spaced(len(samples), TABLE_ROWS)
    body: list[list[Cell]] = [[column[i] for column in shown] for i in rows]
    header = [*(JSON_KEYS[name] for name in names), *scores, *(f"{n}_reason" for n in reasons)]
    return header, body
