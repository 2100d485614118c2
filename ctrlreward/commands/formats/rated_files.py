"""Rated files as the papers published them, and what the papers found on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.commands.formats.parsing import decode, numbered_lines, parse_csv, parse_json
from ctrlreward.commands.formats.tables import numbers
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


@dataclass(frozen=True)
class Published:
    """A figure of a paper.

    Attributes:
        file: Name of the rated file that it is about.
        score: As the scorer names it.
        rating: As `Rated` names it.
        statistic: `"pearson"`, `"spearman"` or `"kendall"`.
        level: `"sample"` or `"system"`.
        value: -1 to 1.
        by: The paper and its model.
    """

    file: str
    score: str
    rating: str
    statistic: str
    level: str
    value: float
    by: str


PUBLISHED = tuple(
    Published(
        "data_senti.txt", aspect, aspect, "kendall", "sample", value, "CTRLEval, PEGASUS-568M"
    )
    for aspect, value in (
        ("coherence", 0.3044),
        ("consistency", 0.2235),
        ("attribute_relevance", 0.2111),
    )
)


@dataclass(frozen=True)
class Rated:
    """Texts that people have rated.

    Attributes:
        file: The file's name.
        samples: The texts, and what scorers read beside them.
        ratings: Each rating by name, float64 of shape (n,); NaN where there is none.
        clusters: What the rows that are alike have in common, for the bootstrap; None for no
            such rows.
        systems: Which system wrote each text, None where that is not known; None where the file
            does not say.
    """

    file: str
    samples: Samples
    ratings: Mapping[str, Scores]
    clusters: tuple[str, ...] | None
    systems: tuple[str | None, ...] | None


def read_ctrleval(path: Path) -> Rated:
    """CTRLEval's form: label, prefix, text, coherence, consistency and attribute relevance.

    A row a line, separated by tabs, without a header. Clusters are the prefixes. The file does
    not name the systems that wrote the texts.

    Raises:
        ValueError: A line has not these six columns.
    """
    names = ("coherence", "consistency", "attribute_relevance")
    rows, ratings = [], []
    for number, line in numbered_lines(decode(path.read_bytes(), path)):
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
    texts, prefixes, labels = _transposed(rows, path)
    columns = dict(zip(names, np.array(ratings).T, strict=True))
    return Rated(path.name, Samples(texts, prefixes, labels), columns, prefixes, None)


def read_ctc(path: Path) -> Rated:
    """CTC's forms: rated dialog responses (persona_chat) or summaries (qags_xsum), a JSON list.

    Clusters are dialogs and documents.

    Raises:
        ValueError: The file has neither's keys, or a text is null.
    """
    records = parse_json(decode(path.read_bytes(), path), path)
    if not (isinstance(records, list) and records and all(isinstance(r, dict) for r in records)):
        raise ValueError(f"{path} is no JSON list of rated outputs")
    names: tuple[str, ...]
    if "response" in records[0]:
        samples = Samples(
            _strings(records, "response", path),
            histories=_strings(records, "dialog_history", path),
            contexts=_strings(records, "fact", path),
        )
        pairs = zip(samples.histories or (), samples.contexts or (), strict=True)
        clusters = tuple("\n".join(pair) for pair in pairs)
        systems, names = _strings(records, "model", path), ("engaging", "uses_knowledge")
    else:
        documents = _strings(records, "document", path)
        samples = Samples(_strings(records, "summary", path), sources=documents)
        clusters, systems = documents, _strings(records, "system", path)
        names = ("consistency",)
    return Rated(path.name, samples, _ratings(records, names, path), clusters, systems)


def read_li2018(path: Path) -> Rated:
    """Li et al.'s rated style transfers: a CSV file with a header.

    The column system names all systems that wrote the same text (`fader|multi_decoder`), as many
    rows as systems: they are dealt out in that order. Where a row names none and its item lacks
    one system, it is that one's. `mean` is the mean of the three ratings; clusters are items.

    Raises:
        ValueError: A column is absent, or a rating is no number.
    """
    records = [row for _, row in parse_csv(decode(path.read_bytes(), path), path)[1]]
    if not records:
        raise ValueError(f"{path} has no rows")
    sources = _strings(records, "source", path)
    samples = Samples(
        _strings(records, "output", path), labels=_strings(records, "target", path), sources=sources
    )
    items = _strings(records, "item", path)
    clusters = tuple(f"{item}\n{source}" for item, source in zip(items, sources, strict=True))
    ratings = _ratings(records, ("topic", "sentiment", "grammaticality"), path)
    ratings["mean"] = np.mean(list(ratings.values()), axis=0)
    systems = deal_systems(_strings(records, "system", path), clusters)
    return Rated(path.name, samples, ratings, clusters, systems)


def deal_systems(names: Sequence[str], items: Sequence[str]) -> tuple[str | None, ...]:
    """One system for each row, from names like `a|b` that stand at as many rows of an item.

    Args:
        names: Systems that wrote the row's text, empty where none is named, shape (n,).
        items: What the systems were given, shape (n,); each system wrote once for each.

    Returns:
        Shape (n,); None where a row without a name could be of several systems.
    """
    everyone = {name for row in names for name in row.split("|") if name}
    seen: Counter[tuple[str, str]] = Counter()
    dealt: list[str | None] = []
    missing: dict[str, set[str]] = defaultdict(everyone.copy)
    for row, item in zip(names, items, strict=True):
        candidates = row.split("|")
        name = candidates[seen[item, row] % len(candidates)]
        seen[item, row] += 1
        missing[item].discard(name)
        dealt.append(name or None)
    return tuple(
        next(iter(missing[item])) if name is None and len(missing[item]) == 1 else name
        for name, item in zip(dealt, items, strict=True)
    )


def _transposed(rows: Sequence[tuple[str, ...]], path: Path) -> list[tuple[str, ...]]:
    if not rows:
        raise ValueError(f"{path} has no rows")
    return list(zip(*rows, strict=True))


def _strings(records: Sequence[dict[str, Any]], key: str, path: Path) -> tuple[str, ...]:
    for row, record in enumerate(records):
        if key not in record:
            raise ValueError(f"{path}: row {row} lacks {key!r}; it has {', '.join(record)}")
        if record[key] is None:
            raise ValueError(f"{path}: row {row} has null as {key!r}: give a text, or drop the row")
    return tuple(str(record[key]) for record in records)


def _ratings(
    records: Sequence[dict[str, Any]], keys: Sequence[str], path: Path
) -> dict[str, Scores]:
    try:
        return {key: numbers(records, key) for key in keys}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
