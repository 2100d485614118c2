"""Texts with human ratings: the user's tables, and files in the formats that papers published."""

from __future__ import annotations

import io
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrlreward.files import parse_json
from ctrlreward.models.cache import cache_folder
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.tables.columns import Columns, number_column, require_column, to_samples
from ctrlreward.tables.rows import Row, decode_utf8, read_bytes, read_placed


@dataclass(frozen=True)
class Rated:
    """Texts with human ratings, n rows.

    `ratings` are float64 by name, NaN if a row has none. The bootstrap draws `clusters`, or rows if
    it is None. `systems` wrote the texts; one is None if unknown, all if the file names none.
    `places` name the rows in messages.
    """

    file: str
    samples: Samples
    ratings: Mapping[str, Scores]
    clusters: tuple[str, ...] | None
    systems: tuple[str | None, ...] | None
    rows: Sequence[Row]
    places: Sequence[str]


class _Format(NamedTuple):
    """Columns of a published file; rows that agree in all of `clusters` are a cluster."""

    columns: Columns
    ratings: tuple[str, ...]
    clusters: tuple[str, ...]
    system: str | None


_CTRLEVAL = ("label", "prefix", "text", "coherence", "consistency", "attribute_relevance")
_DIALOG = "engaging uses_knowledge overall understandable natural maintains_context"
_LI2018 = _Format(
    Columns(text="output", label="target", source="source"),
    ("topic", "sentiment", "grammaticality"),
    ("item", "source"),
    "system",
)
# Rating of CTC's files → the aspect of `Alignment` that it judges.
CTC_ASPECTS = {"engaging": "engagingness", "uses_knowledge": "groundedness"}
CTC_ASPECTS |= {name: name for name in ("preservation", "consistency", "relevance")}

# Column that only one format has → the format.
_FORMATS: Mapping[str, _Format] = {
    "attribute_relevance": _Format(Columns(), _CTRLEVAL[3:], ("prefix",), None),
    "response": _Format(
        Columns(text="response", history="dialog_history", context="fact"),
        tuple(_DIALOG.split()),
        ("dialog_history", "fact"),
        "model",
    ),
    "output_sent": _Format(
        Columns(text="output_sent", source="input_sent"),
        ("preservation",),
        ("input_sent",),
        "model",
    ),
    "document": _Format(
        Columns(text="summary", source="document", reference="references"),
        ("consistency", "relevance"),
        ("document",),
        "system",
    ),
    "grammaticality": _LI2018,
}


def read_rated(
    data: Path,
    ratings: Sequence[str] = (),
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    cluster: str | None = None,
    system: str | None = None,
    texts: bool = True,
) -> Rated:
    """Read texts and their human ratings, with the arguments of `meta-eval rated`.

    Without `ratings`, a file as published, which has its own columns: CTRLEval's (.txt: label,
    prefix, text and three ratings, separated by tabs), CTC's (.json: dialogs, transfers or
    summaries), or Li et al.'s (.csv). `texts` is whether to read the texts.
    """
    rows, places = _rows(local_path(data))
    clusters, form = [cluster] if cluster else [], None
    if not ratings:
        form = next((form for name, form in _FORMATS.items() if name in rows[0]), None)
        if form is None:
            raise ValueError(f"--ratings is needed: the columns of {data} are {', '.join(rows[0])}")
        ratings = [name for name in form.ratings if name in rows[0]] or form.ratings
        columns, clusters, system = form.columns, [*form.clusters], form.system
        if columns.reference not in rows[0]:
            columns = replace(columns, reference=None)
    names = None
    if clusters:
        keys = zip(*(text_column(rows, name) for name in clusters), strict=True)
        names = tuple("\n".join(cell or "" for cell in key) for key in keys)
        if cluster and "" in names:
            raise ValueError(f"{places[names.index('')]}: {cluster} must not be empty")
    by_row = text_column(rows, system) if system else None
    values = {name: number_column(rows, name, places) for name in ratings}
    if form is _LI2018:
        by_row = assign_systems([name or "" for name in by_row or ()], names or ())
        values["mean"] = np.mean(list(values.values()), axis=0)
    samples = to_samples(rows, columns, places) if texts else Samples([""] * len(rows))
    return Rated(Path(data).name, samples, values, names, by_row, rows, places)


def local_path(path: Path) -> Path:
    """Return a path, or where `python -m ctrlreward.recipes.data_sets` puts a file of that name."""
    folder = Path(os.environ.get("CTRLREWARD_DATA") or cache_folder() / "data")
    there = not path.expanduser().exists() and (folder / path).expanduser().is_file()
    return (folder / path if there else path).expanduser()


def _rows(path: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of a file, and the place of each."""
    if path.suffix not in (".txt", ".json"):
        return read_placed(path)
    text = decode_utf8(read_bytes(path), path)
    rows, places = [], []
    if path.suffix == ".json":
        rows = parse_json(text, path)
        if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
            raise ValueError(f"{path} must be a JSON list of objects")
        return rows, [f"{path}: row {i}" for i in range(len(rows))]
    for number, line in enumerate(io.StringIO(text), 1):
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) == len(_CTRLEVAL):
            rows.append(dict(zip(_CTRLEVAL, cells, strict=True)))
            places.append(f"{path}:{number}")
        elif line.strip():
            raise ValueError(f"{path}:{number} must have {', '.join(_CTRLEVAL)}, got {cells}")
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows, places


def text_column(rows: Sequence[Row], name: str) -> tuple[str | None, ...]:
    """Return a column as strings; None for rows that lack it or have an empty cell."""
    require_column(rows, name)
    cells = (row.get(name) for row in rows)
    return tuple(None if cell in ("", None) else str(cell) for cell in cells)


def assign_systems(names: Sequence[str], items: Sequence[str]) -> tuple[str | None, ...]:
    """Return one system per row, where rows with the same text name several systems (`a|b`).

    Of an item's rows named `a|b`, the first is a's and the second b's. A row without a name is that
    of the only system that its item lacks, None if it lacks several.
    """
    missing: dict[str, set[str]] = defaultdict(
        {name for row in names for name in row.split("|") if name}.copy
    )
    turns: Counter[tuple[str, str]] = Counter()
    assigned = []
    for row, item in zip(names, items, strict=True):
        candidates = row.split("|")
        assigned.append(candidates[turns[item, row] % len(candidates)])
        turns[item, row] += 1
        missing[item].discard(assigned[-1])
    return tuple(
        name or (min(missing[item]) if len(missing[item]) == 1 else None)
        for name, item in zip(assigned, items, strict=True)
    )
