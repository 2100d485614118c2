"""Files of texts with human ratings, in the formats in which papers published them."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.files import parse_json
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.tables.columns import number_column, require_column
from ctrlreward.tables.rows import Row, decode_utf8, parse_csv, read_bytes


@dataclass(frozen=True)
class Rated:
    """Texts with human ratings.

    Attributes:
        file: The file's name.
        samples: The texts and the other columns that scorers read.
        ratings: Each rating by name, float64 of shape (n,); NaN if a row has none.
        clusters: Id of the cluster of each row, shape (n,): rows that share a prefix, dialog,
            document or item. The bootstrap draws clusters. None draws rows.
        systems: System that wrote each text, shape (n,), None if unknown. None if the
            file names no systems.
        references: References of each text, the same number for all, shape (n,); None if the file
            has none.
        inferred: Whether `systems` is inferred from the position of the rows, since the file names
            none.
    """

    file: str
    samples: Samples
    ratings: Mapping[str, Scores]
    clusters: tuple[str, ...] | None
    systems: tuple[str | None, ...] | None
    references: tuple[tuple[str, ...], ...] | None = None
    inferred: bool = False


def read_ctrleval(path: Path, systems: Sequence[str] = ()) -> Rated:
    """Read CTRLEval's format: label, prefix, text, coherence, consistency, attribute relevance.

    The file has one row per line, separated by tabs, without a header. Clusters are the prefixes.
    The file does not name the systems.

    Args:
        path: The file.
        systems: Systems whose rows take turns in the order of the file, for each label and prefix;
            none leaves the systems unknown.

    Raises:
        ValueError: A line does not have these six columns, or the rows of a label and prefix are
            not a whole number of turns.
    """
    path = local_file(path)
    names = ("coherence", "consistency", "attribute_relevance")
    rows, ratings = [], []
    content = io.StringIO(decode_utf8(read_bytes(path), path), newline=None)
    for number, line in enumerate(content, 1):
        if not line.strip():
            continue
        cells = line.rstrip("\n").split("\t")
        try:
            label, prefix, text, *values = cells
            ratings.append([float(value) for value in values])
            if len(values) != len(names):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{path}:{number} has {len(cells)} cells, must have label, prefix, text and the "
                f"ratings {', '.join(names)} as numbers, separated by tabs"
            ) from None
        rows.append((text, prefix, label))
    if not rows:
        raise ValueError(f"{path} has no rows")
    texts, prefixes, labels = zip(*rows, strict=True)
    columns = dict(zip(names, np.array(ratings).T, strict=True))
    by_place = systems_by_position(systems, list(zip(labels, prefixes, strict=True)))
    samples = Samples(texts, prefixes, labels)
    return Rated(path.name, samples, columns, prefixes, by_place, inferred=by_place is not None)


def systems_by_position(
    systems: Sequence[str], inputs: Sequence[Hashable]
) -> tuple[str, ...] | None:
    """Return one system per row, where the systems' rows for an input take turns.

    Args:
        systems: Names in the order of their turns; none returns None.
        inputs: Input of each row, shape (n,).

    Returns:
        Shape (n,).

    Raises:
        ValueError: An input has a number of rows that is not a multiple of the number of systems.

    Examples:
        >>> systems_by_position(["A", "B"], ["x", "x", "y", "x", "y", "x"])
        ('A', 'B', 'A', 'A', 'B', 'B')
    """
    if not systems:
        return None
    counts: Counter[Hashable] = Counter()
    assigned = []
    for item in inputs:
        assigned.append(systems[counts[item] % len(systems)])
        counts[item] += 1
    for item, count in counts.items():
        if count % len(systems):
            raise ValueError(
                f"systems = {list(systems)}: {item!r} has {count} rows, must be a multiple of "
                f"{len(systems)}"
            )
    return tuple(assigned)


class _Format(NamedTuple):
    """Keys of one of CTC's formats.

    Attributes:
        text: Key of the scored text; a file with it has this format.
        inputs: Column of `Samples` → key of the input of the generator. Rows that agree in
            all of them are a cluster.
        system: Key of the system's name.
        ratings: Keys of the ratings, of which a file has one or more.
    """

    text: str
    inputs: Mapping[str, str]
    system: str
    ratings: tuple[str, ...]


_CTC_FORMATS = (
    _Format(
        "response",
        {"histories": "dialog_history", "contexts": "fact"},
        "model",
        tuple("engaging uses_knowledge overall understandable natural maintains_context".split()),
    ),
    _Format("output_sent", {"sources": "input_sent"}, "model", ("preservation",)),
    _Format("summary", {"sources": "document"}, "system", ("consistency", "relevance")),
)


def read_ctc(path: Path) -> Rated:
    """Read CTC's formats: JSON lists of dialog responses, style transfers or summaries.

    - persona_chat.json and topical_chat.json: six ratings of a response. Clusters are dialogs.
    - yelp.json, rated for Mir et al. (2019): preservation. Clusters are source sentences.
    - qags_cnndm.json, qags_xsum.json: consistency. Clusters are documents.
    - summeval.json: the experts' consistency and relevance, and a list of references.

    Raises:
        ValueError: The rows have the keys of none of these, a text is null, or rows have different
            numbers of references.
    """
    path = local_file(path)
    rows = parse_json(decode_utf8(read_bytes(path), path), path)
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise ValueError(f"{path} is not a JSON list of objects, must be a list of rated texts")
    form = next((form for form in _CTC_FORMATS if form.text in rows[0]), _CTC_FORMATS[-1])
    inputs = {column: _strings(rows, key, path) for column, key in form.inputs.items()}
    samples = Samples(_strings(rows, form.text, path), **inputs)
    clusters = tuple("\n".join(row) for row in zip(*inputs.values(), strict=True))
    present = [key for key in form.ratings if key in rows[0]]
    ratings = _ratings(rows, present or form.ratings, path)
    references = _references(rows, path) if "references" in rows[0] else None
    systems = _strings(rows, form.system, path)
    return Rated(path.name, samples, ratings, clusters, systems, references)


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
            raise ValueError(f"{path}: row {i} does not have {key!r}, only {', '.join(row)}")
        if row[key] is None:
            raise ValueError(f"{path}: {key}[{i}] is null. Add a text, or drop the row.")
    return tuple(str(row[key]) for row in rows)


def _references(rows: Sequence[dict[str, Any]], path: Path) -> tuple[tuple[str, ...], ...]:
    for i, row in enumerate(rows):
        given = row.get("references")
        if not (isinstance(given, list) and given and all(isinstance(r, str) for r in given)):
            raise ValueError(f"{path}: references[{i}] must be a list of texts")
        if len(given) != len(rows[0]["references"]):
            count = len(rows[0]["references"])
            raise ValueError(f"{path}: references[{i}] has {len(given)} texts, must be {count}")
    return tuple(tuple(row["references"]) for row in rows)


def _ratings(rows: Sequence[dict[str, Any]], keys: Sequence[str], path: Path) -> dict[str, Scores]:
    try:
        return {key: number_column(rows, key) for key in keys}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def optional_cells(rows: Sequence[Row], name: str) -> tuple[str | None, ...]:
    """Return a column as strings; None for rows that lack it or have an empty cell."""
    require_column(rows, name)
    cells = (row.get(name) for row in rows)
    return tuple(None if cell in ("", None) else str(cell) for cell in cells)
