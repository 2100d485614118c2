"""The batch type: texts and whatever is known of them, column by column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any

# Column → its key in a JSONL record, one record a sample.
JSON_KEYS = {
    "texts": "text",
    "prefixes": "prefix",
    "labels": "label",
    "sources": "source",
    "references": "reference",
    "contexts": "context",
    "histories": "history",
    "prompts": "prompt",
    "groups": "group",
}


@dataclass(frozen=True)
class Samples:
    """Texts to be scored and the columns that scorers read beside them.

    Every column is a sequence of strings, one a sample, all of the same length; it is checked
    once, here, and kept as a tuple.

    Args:
        texts: The generated texts, prefix included. May be empty strings: a generator can end at
            once, and a scorer then gives NaN.
        prefixes: What each text begins with, character for character (content prefix).
        labels: The wanted attribute, as the scorer's task names it (`"positive"`).
        sources: The input of a transfer or a summary.
        references: A human-written target, for the few scorers that take one.
        contexts: Knowledge that the text should draw on (a fact, a document).
        histories: The dialog before the text.
        prompts: What the generator read; never scored, kept for tables and adapters.
        groups: Samples with the same group id answer the same prompt.

    Raises:
        TypeError: A column or an item is not of the right type; names column and item.
        ValueError: Lengths differ, or a prefix does not start its text.
    """

    texts: Sequence[str]
    prefixes: Sequence[str] | None = None
    labels: Sequence[str] | None = None
    sources: Sequence[str] | None = None
    references: Sequence[str] | None = None
    contexts: Sequence[str] | None = None
    histories: Sequence[str] | None = None
    prompts: Sequence[str] | None = None
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in JSON_KEYS:
            column = getattr(self, name)
            if column is not None or name == "texts":
                object.__setattr__(self, name, _strings(name, column))
        for name, column in self.columns().items():
            if len(column) != len(self.texts):
                raise ValueError(
                    f"{name} has {len(column)} items and texts has {len(self.texts)}: "
                    "give one item per text"
                )
        for i, (text, prefix) in enumerate(zip(self.texts, self.prefixes or (), strict=False)):
            if not text.startswith(prefix):
                raise ValueError(
                    f"prefixes[{i}] = {shortened(prefix)} does not start "
                    f"texts[{i}] = {shortened(text)}: give the text with its prefix"
                )

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice | Sequence[int]) -> Samples:
        """The samples at a slice or at a sequence of indices, in that order."""
        if isinstance(rows, int):
            raise TypeError(f"samples[{rows}] is one row: write samples[{rows}:{rows + 1}]")
        indices = range(len(self))[rows] if isinstance(rows, slice) else rows
        return Samples(
            **{name: [column[i] for i in indices] for name, column in self.columns().items()}
        )

    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns that are present, by name, in declaration order."""
        present = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in present.items() if column is not None}

    def require(self, name: str, scorer: str) -> tuple[str, ...]:
        """A column, or an error that says which scorer needs it.

        Raises:
            ValueError: The column is absent.
        """
        columns = self.columns()
        if name not in columns:
            raise ValueError(
                f"{scorer} needs the column {name!r}, and these samples have "
                f"{', '.join(columns)}: pass Samples(..., {name}=[...])"
            )
        return columns[name]

    def replace(self, **columns: Sequence[str] | None) -> Samples:
        """The same samples with some columns exchanged (None removes one)."""
        changes: dict[str, Any] = {**columns}  # the type of all columns, though texts can't be None
        return replace(self, **changes)

    def as_prompts(self) -> Samples:
        """The samples cut back to their beginnings, as a generator takes them.

        The beginning is the prefix, where there are none the text. `prefixes`, `prompts` (the
        beginnings) and `groups` (the prompts' numbers) are filled in where they are absent.
        """
        beginnings = self.texts if self.prefixes is None else self.prefixes
        numbers = [str(i) for i in range(len(self))]
        return self.replace(
            texts=beginnings,
            prefixes=beginnings,
            prompts=beginnings if self.prompts is None else self.prompts,
            groups=numbers if self.groups is None else self.groups,
        )

    def completed(self, completions: Sequence[str]) -> Samples:
        """Prompts with what a generator wrote behind each: texts are prefix + completion.

        Raises:
            ValueError: There is not one completion per prompt, or the column prefixes is absent.
        """
        prefixes = self.require("prefixes", "Samples.completed")
        if len(completions) != len(prefixes):
            raise ValueError(
                f"{len(completions)} completions for {len(prefixes)} prompts: give one per prompt"
            )
        return self.replace(texts=[p + c for p, c in zip(prefixes, completions, strict=True)])

    def distinct(self) -> tuple[Samples, list[int]]:
        """The samples without repetitions, and for each sample its place among them.

        Two samples are the same when they agree in every column but `prompts` and `groups`, which
        no scorer of single samples reads.
        """
        read = [c for name, c in self.columns().items() if name not in ("prompts", "groups")]
        places: dict[tuple[str, ...], int] = {}
        first: list[int] = []
        inverse: list[int] = []
        for i, key in enumerate(zip(*read, strict=True)):
            if key not in places:
                places[key] = len(first)
                first.append(i)
            inverse.append(places[key])
        return self[first], inverse

    @staticmethod
    def concat(parts: Iterable[Samples]) -> Samples:
        """All samples of the parts, in order.

        Raises:
            ValueError: The parts don't have the same columns, or there is no part.
        """
        parts = list(parts)
        if not parts:
            raise ValueError("Samples.concat got no parts: give at least one Samples")
        names = list(parts[0].columns())
        for i, part in enumerate(parts):
            if list(part.columns()) != names:
                raise ValueError(
                    f"parts[{i}] has the columns {', '.join(part.columns())} and parts[0] has "
                    f"{', '.join(names)}: give all parts the same columns"
                )
        return Samples(
            **{name: [item for part in parts for item in getattr(part, name)] for name in names}
        )

    def to_jsonl(self, path: str | PathLike[str]) -> None:
        """Writes one JSON record a sample, with keys in the singular (`text`, `prefix`, …)."""
        columns = self.columns()
        with open(path, "w", encoding="utf-8") as file:
            for row in zip(*columns.values(), strict=True):
                record = {JSON_KEYS[name]: item for name, item in zip(columns, row, strict=True)}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    @staticmethod
    def from_jsonl(path: str | PathLike[str]) -> Samples:
        """Reads records as `to_jsonl` writes them; other keys are left aside.

        Raises:
            ValueError: A line is no JSON object, or it lacks a key that the first line has.
        """
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()  # not str.splitlines, for which U+2028 in a text ends a line
        records = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number} is not JSON ({error})") from error
            if not isinstance(record, dict) or "text" not in record:
                raise ValueError(f"{path}:{number} is no object with the key 'text'")
            records.append(record)
        names = [n for n, key in JSON_KEYS.items() if records and key in records[0]] or ["texts"]
        for name in names:
            for number, record in enumerate(records, 1):
                if JSON_KEYS[name] not in record:
                    raise ValueError(
                        f"{path}:{number} lacks the key {JSON_KEYS[name]!r}, which line 1 has"
                    )
        return Samples(**{n: [record[JSON_KEYS[n]] for record in records] for n in names})


def _strings(name: str, column: object) -> tuple[str, ...]:
    if isinstance(column, str) or not isinstance(column, Iterable):
        raise TypeError(
            f"{name} = {shortened(column)} is a {type(column).__name__}: give a list of strings"
        )
    items = tuple(column)
    for i, item in enumerate(items):
        if not isinstance(item, str):
            raise TypeError(
                f"{name}[{i}] = {shortened(item)} is a {type(item).__name__}, not a str"
            )
    return items


def shortened(item: object, width: int = 40) -> str:
    """What a message calls a text, or whatever stands in its place: its `repr`, cut to a width."""
    shown = repr(item)
    return shown if len(shown) <= width else shown[: width - 2] + "…" + shown[-1]
