"""Files of texts with human ratings, in the formats in which papers published them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.data import local_file
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.tables.parsing import (
    decode_utf8,
    numbered_lines,
    parse_csv,
    parse_json,
    read_bytes,
)
from ctrlreward.tables.table_columns import number_column


@dataclass(frozen=True)
class Rated:
    """Texts with human ratings.

    Attributes:
        file: The file's name.
        samples: The texts and the other columns that scorers read.
        ratings: Each rating by name, float64 of shape (n,); NaN where a row has none.
        clusters: Id of the cluster of each row, shape (n,): rows that share a prefix, dialog,
            document or item. The bootstrap draws clusters. None draws rows.
        systems: System that wrote each text, shape (n,), None where it is unknown. None if the
            file names no systems.
    """

    file: str
    samples: Samples
    ratings: Mapping[str, Scores]
    clusters: tuple[str, ...] | None
    systems: tuple[str | None, ...] | None


def read_ctrleval(path: Path) -> Rated:
    """Read CTRLEval's format: label, prefix, text, coherence, consistency, attribute relevance.

    The file has one row per line, separated by tabs, without a header. Clusters are the prefixes.
    The file does not name the systems.

    Raises:
        ValueError: A line does not have these six columns.
    """
    path = local_file(path)
    names = ("coherence", "consistency", "attribute_relevance")
    rows, ratings = [], []
    for number, line in numbered_lines(decode_utf8(read_bytes(path), path)):
        if not line.strip():
            continue
        cells = line.split("\t")
        try:
            label, prefix, text, *values = cells
            ratings.append([float(value) for value in values])
            if len(values) != len(names):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{path}:{number} has {len(cells)} cells: give label, prefix, text and the "
                f"ratings {', '.join(names)} as numbers, separated by tabs"
            ) from None
        rows.append((text, prefix, label))
    if not rows:
        raise ValueError(f"{path} has no rows")
    texts, prefixes, labels = zip(*rows, strict=True)
    columns = dict(zip(names, np.array(ratings).T, strict=True))
    return Rated(path.name, Samples(texts, prefixes, labels), columns, prefixes, None)


def read_ctc(path: Path) -> Rated:
    """Read CTC's formats: JSON lists of dialog responses (persona_chat) or summaries (qags_xsum).

    Clusters are dialogs and documents.

    Raises:
        ValueError: The rows have the keys of neither file, or a text is null.
    """
    path = local_file(path)
    rows = parse_json(decode_utf8(read_bytes(path), path), path)
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise ValueError(f"{path} is not a JSON list of objects: give a list of rated texts")
    names: tuple[str, ...]
    if "response" in rows[0]:
        samples = Samples(
            _strings(rows, "response", path),
            histories=_strings(rows, "dialog_history", path),
            contexts=_strings(rows, "fact", path),
        )
        pairs = zip(samples.histories or (), samples.contexts or (), strict=True)
        clusters = tuple("\n".join(pair) for pair in pairs)
        systems, names = _strings(rows, "model", path), ("engaging", "uses_knowledge")
    else:
        documents = _strings(rows, "document", path)
        samples = Samples(_strings(rows, "summary", path), sources=documents)
        clusters, systems = documents, _strings(rows, "system", path)
        names = ("consistency",)
    return Rated(path.name, samples, _ratings(rows, names, path), clusters, systems)


def read_li2018(path: Path) -> Rated:
    """Read the rated style transfers of Li et al. (2018): a CSV file with a header.

    If several systems wrote the same text, the column `system` names all of them
    (`fader|multi_decoder`), and the text has one row per system; `assign_systems` gives each row
    one of them. The rating `mean` is the mean of the three ratings. Clusters are the items.

    Raises:
        ValueError: A column is missing, or a rating is not a number.
    """
    path = local_file(path)
    rows = [row for _, row in parse_csv(decode_utf8(read_bytes(path), path), path)[1]]
    if not rows:
        raise ValueError(f"{path} has no rows")
    sources = _strings(rows, "source", path)
    samples = Samples(
        _strings(rows, "output", path), labels=_strings(rows, "target", path), sources=sources
    )
    items = _strings(rows, "item", path)
    clusters = tuple(f"{item}\n{source}" for item, source in zip(items, sources, strict=True))
    ratings = _ratings(rows, ("topic", "sentiment", "grammaticality"), path)
    ratings["mean"] = np.mean(list(ratings.values()), axis=0)
    systems = assign_systems(_strings(rows, "system", path), clusters)
    return Rated(path.name, samples, ratings, clusters, systems)


def assign_systems(names: Sequence[str], items: Sequence[str]) -> tuple[str | None, ...]:
    """Return one system per row, where rows with the same text name several systems (`a|b`).

    Of an item's rows named `a|b`, the first is assigned to a and the second to b. A row without a
    name is assigned to the only system that its item lacks.

    Args:
        names: Systems that wrote the row's text, empty if none is named, shape (n,).
        items: Input of the systems, shape (n,); each system has one row per item.

    Returns:
        Shape (n,); None where a row without a name could be of several systems.
    """
    systems = {name for row in names for name in row.split("|") if name}
    seen: Counter[tuple[str, str]] = Counter()
    assigned: list[str | None] = []
    missing: dict[str, set[str]] = defaultdict(systems.copy)
    for row, item in zip(names, items, strict=True):
        candidates = row.split("|")
        name = candidates[seen[item, row] % len(candidates)]
        seen[item, row] += 1
        missing[item].discard(name)
        assigned.append(name or None)
    return tuple(
        next(iter(missing[item])) if name is None and len(missing[item]) == 1 else name
        for name, item in zip(assigned, items, strict=True)
    )


def _strings(rows: Sequence[dict[str, Any]], key: str, path: Path) -> tuple[str, ...]:
    for i, row in enumerate(rows):
        if key not in row:
            raise ValueError(f"{path}: row {i} lacks {key!r}: it has {', '.join(row)}")
        if row[key] is None:
            raise ValueError(f"{path}: {key}[{i}] is null: give a text, or drop the row")
    return tuple(str(row[key]) for row in rows)


def _ratings(rows: Sequence[dict[str, Any]], keys: Sequence[str], path: Path) -> dict[str, Scores]:
    try:
        return {key: number_column(rows, key) for key in keys}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
