"""Scores of a corpus of texts, one unit of scorers after the other, in memory or shard by shard."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, zip_longest
from textwrap import shorten
from typing import Any

import numpy as np

from ctrlreward.command_line.terminal import printable
from ctrlreward.corpus.shard_store import Manifest, ShardStore, checksum, in_chunks
from ctrlreward.corpus.workers import ScoreShards, Shard
from ctrlreward.items import ItemPlaces, items_named
from ctrlreward.progress import track, write_line
from ctrlreward.scorers import Component, CompositeScorer, ModelScorer, Scorer
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import PlacedRow, RowStream
from ctrlreward.tables.table_columns import Columns, explained_columns, read_columns, to_samples
from ctrlreward.tables.table_writing import TableShape, TableWriter


@dataclass(frozen=True)
class Corpus:
    """Rows of a table with texts, read anew for each use.

    Scorers read `columns` of those `present` in the first row; `label_map` maps the table's labels
    to the scorers'.
    """

    rows: RowStream
    columns: Columns
    present: Sequence[str]
    label_map: Mapping[str, str] | None = None

    def shard(self, number: int, rows: Sequence[PlacedRow]) -> Shard:
        """Return consecutive rows as a shard."""
        places = [row.place for row in rows]
        cells = [row.cells for row in rows]
        samples = to_samples(cells, self.columns, places, self.present, self.label_map)
        invalid = samples.invalid_unicode()
        samples = samples.blanked(invalid) if invalid else samples
        return Shard(number, samples, places, read_columns(self.columns, self.present), invalid)


def check_corpus(
    corpus: Corpus,
    components: Mapping[str, Component],
    settings: Mapping[str, Any],
    chunk: int,
    shapes: Sequence[TableShape],
) -> Manifest:
    """Read all rows, raise errors that would otherwise come after hours, and cut into shards."""
    checksums: list[str] = []
    count = 0
    for rows in in_chunks(corpus.rows.placed(), chunk):
        check_shard(corpus, components, corpus.shard(len(checksums), rows), rows, shapes)
        checksums.append(checksum([row.cells for row in rows]))
        count += len(rows)
    return Manifest(settings, chunk, count, checksums)


def check_shard(
    corpus: Corpus,
    components: Mapping[str, Component],
    shard: Shard,
    rows: Sequence[PlacedRow],
    shapes: Sequence[TableShape],
) -> None:
    """Check consecutive rows; a line names each row whose text is not valid Unicode."""
    clashing = [name for name in components if any(name in row.cells for row in rows)]
    if clashing:
        raise ValueError(
            f"{corpus.rows} already has columns with the names of scores ({', '.join(clashing)}). "
            "Pass --names, one per scorer, to prefix the names of their scores. If this is the "
            "output, put it after the texts."
        )
    with explained_columns(corpus.present), items_named(ItemPlaces(shard.places, shard.columns)):
        check_samples(components, shard.samples)
    for i, column in shard.invalid.items():
        name = shard.columns[column]
        write_line(f"{shard.places[i]}: {name} is not valid Unicode: its scores are NaN")
    for file, group in groupby(rows, key=lambda row: min(row.file, len(shapes) - 1)):
        placed = list(group)
        try:
            shapes[file].add([row.cells for row in placed])
        except ValueError:
            for row in placed:
                try:
                    shapes[file].add([row.cells])
                except ValueError as error:
                    raise ValueError(f"{row.place}: {error}") from None
            raise


def score_in_memory(
    components: Mapping[str, Component], shard: Shard, score_shards: ScoreShards
) -> dict[str, Scores]:
    """Return the scores of rows, shape (rows,) by name, NaN if failed; show the progress.

    The scorers of a unit share their models (`scoring_units`). A unit scores all rows and frees its
    models before the next one loads.
    """
    scores: dict[str, Scores] = {}
    for title, unit, _ in titled_units(components):
        with track(title, len(shard.places)) as advance:
            for _, part in score_shards(unit, [shard]):
                scores |= part
            advance(len(shard.places))
    return {name: scores[name] for name in components}


def score_corpus(
    corpus: Corpus,
    components: Mapping[str, Component],
    manifest: Manifest,
    store: ShardStore,
    score_shards: ScoreShards,
) -> None:
    """Score all shards that are not done, as `score_in_memory`; all rows at once for `Distinct`."""
    numbers = range(len(manifest.checksums))
    for title, unit, pointwise in titled_units(components):
        missing = [store.missing(i, list(unit)) for i in numbers]
        if not any(missing):
            continue
        done = [len(manifest.range(i)) for i in numbers if pointwise and not missing[i]]
        with track(title, manifest.rows, done=sum(done)) as advance:
            if not pointwise:
                whole = chain.from_iterable(unchanged_shards(corpus, manifest))
                for _, scores in score_shards(unit, [corpus.shard(0, list(whole))]):
                    for i in numbers:
                        rows = manifest.range(i)
                        part = {n: v[rows.start : rows.stop] for n, v in scores.items()}
                        store.write(i, part)
                advance(manifest.rows)
                continue
            # A run resumed on other devices may have other units, some partly done.
            for names in dict.fromkeys(filter(None, missing)):
                wanted = {i for i in numbers if missing[i] == names}
                read = enumerate(unchanged_shards(corpus, manifest))
                shards = (corpus.shard(i, rows) for i, rows in read if i in wanted)
                for i, scores in score_shards({name: unit[name] for name in names}, shards):
                    store.write(i, scores)
                    advance(len(manifest.range(i)))


def write_output(
    names: Sequence[str],
    scored: Iterable[tuple[Sequence[PlacedRow], Mapping[str, Scores]]],
    outputs: Sequence[Location],
    shapes: Sequence[TableShape],
) -> dict[str, tuple[float, int, int]]:
    """Write rows and their scores in the order of the input.

    Returns the mean of each score, NaN if all rows failed, and the numbers of rows and failed rows.
    """
    count, valid, total = 0, dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    with ExitStack() as open_file:
        current = -1
        for rows, scores in scored:
            count += len(rows)
            for name, values in scores.items():
                known = values[~np.isnan(values)]
                valid[name] += len(known)
                total[name] += float(known.sum())
            start = 0
            for number, group in groupby(rows, key=lambda row: min(row.file, len(outputs) - 1)):
                if number != current:
                    open_file.close()
                    current = number
                    file = open_file.enter_context(outputs[number].whole_file())
                    writer = open_file.enter_context(TableWriter(file, shapes[number], names))
                cells = [row.cells for row in group]
                end = start + len(cells)
                writer.write(cells, {name: values[start:end] for name, values in scores.items()})
                start = end
    return {
        n: (total[n] / valid[n] if valid[n] else np.nan, count, count - valid[n]) for n in names
    }


def unchanged_shards(corpus: Corpus, manifest: Manifest) -> Iterator[list[PlacedRow]]:
    """Yield the rows of each shard, while reading them; raise if they are not the manifest's."""
    shards = in_chunks(corpus.rows.placed(), manifest.chunk)
    for rows, expected in zip_longest(shards, manifest.checksums, fillvalue=()):
        if not rows or checksum([row.cells for row in rows]) != expected:
            raise ValueError(f"{corpus.rows} has changed while it was scored. Repeat the command.")
        yield list(rows)


def models_of(scorer: Scorer) -> frozenset[Hashable]:
    """Return a key of each model that a scorer uses: all its loading options."""
    if isinstance(scorer, CompositeScorer):
        return frozenset(model for part in scorer.parts for model in models_of(part))
    if not isinstance(scorer, ModelScorer):
        return frozenset()
    if isinstance(scorer.model, Scorer):
        return models_of(scorer.model)
    if not isinstance(scorer.model, str):
        return frozenset([id(scorer.model)])
    return frozenset([(scorer.model, scorer.device, scorer.dtype, scorer.batch_tokens)])


def scoring_units(scorers: Sequence[Scorer]) -> list[list[Scorer]]:
    """Group scorers so that each unit can be scored and released before the next one is loaded.

    A scorer joins a scorer that uses all of its models. The scorers of a unit are either all
    pointwise, or none is. Units are in the order of their first scorers.
    """
    units: list[list[Scorer]] = []
    for scorer in sorted(scorers, key=lambda scorer: -len(models_of(scorer))):
        models = models_of(scorer)
        for unit in units:
            if models and models <= models_of(unit[0]) and unit[0].pointwise == scorer.pointwise:
                unit.append(scorer)
                break
        else:
            units.append([scorer])
    return sorted(
        (sorted(unit, key=scorers.index) for unit in units), key=lambda u: scorers.index(u[0])
    )


def titled_units(
    components: Mapping[str, Component],
) -> Iterator[tuple[str, dict[str, Component], bool]]:
    """Yield title, components and pointwise of each unit: `"coherence, perplexity (1 of 2)"`."""
    units = scoring_units(list(dict.fromkeys(c.scorer for c in components.values())))
    for number, unit in enumerate(units, 1):
        own = {name: c for name, c in components.items() if c.scorer in unit}
        title = shorten(printable(", ".join(own)), 60, placeholder=" …")
        title += f" ({number} of {len(units)})" if len(units) > 1 else ""
        yield title, own, unit[0].pointwise
