"""A corpus of texts, scored shard by shard: checked, scored, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ctrlreward.commands.scoring_units import titled_units
from ctrlreward.commands.shards.manifest import Manifest, ShardEntry, checksum, in_chunks
from ctrlreward.commands.shards.shard_store import ShardStore
from ctrlreward.commands.shards.workers import Shard, Workers
from ctrlreward.displays import write_line
from ctrlreward.items import ItemPlaces, items_named
from ctrlreward.progress import track
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, check_samples
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import PlacedRow, Row, RowStream
from ctrlreward.tables.table_columns import (
    Columns,
    explained_columns,
    read_columns,
    to_samples,
)
from ctrlreward.tables.table_writing import TableShape, TableWriter


@dataclass(frozen=True)
class Corpus:
    """Rows of a table with texts, read anew for each use.

    Attributes:
        rows: The rows.
        columns: Which of their columns scorers read.
        components: The scores to compute, by column of the output.
        present: Columns of the first row.
        label_map: Label in the table → label of the scorers; None takes them as they are.
    """

    rows: RowStream
    columns: Columns
    components: Mapping[str, Component]
    present: Sequence[str]
    label_map: Mapping[str, str] | None = None

    def samples(self, rows: Sequence[PlacedRow]) -> Samples:
        """Return the samples of rows that follow one another."""
        places = [self.rows.place(row) for row in rows]
        cells = [row.cells for row in rows]
        return to_samples(cells, self.columns, places, self.present, self.label_map)

    def shard(self, number: int, rows: Sequence[PlacedRow]) -> Shard:
        """Return rows as a shard, without those whose text is not valid Unicode."""
        samples = self.samples(rows)
        invalid = samples.invalid_unicode()
        kept = [i for i in range(len(rows)) if i not in invalid]
        return Shard(
            number,
            samples[kept] if invalid else samples,
            kept,
            [self.rows.place(row) for row in rows],
            read_columns(self.columns, self.present),
        )


@dataclass
class Means:
    """Sums for the means of scores, over shards.

    Attributes:
        rows: Number of rows.
        scored: Rows that have not failed, by score.
        total: Sum of their scores, by score.
    """

    rows: int
    scored: dict[str, int]
    total: dict[str, float]

    def add(self, scores: Mapping[str, Scores]) -> None:
        """Add the scores of a shard."""
        for name, values in scores.items():
            valid = values[~np.isnan(values)]
            self.scored[name] += len(valid)
            self.total[name] += float(valid.sum())

    def mean(self, name: str) -> float:
        """Return the mean of a score; NaN where all rows have failed."""
        return self.total[name] / self.scored[name] if self.scored[name] else float("nan")


def survey(
    corpus: Corpus, settings: Mapping[str, Any], chunk: int, shapes: Sequence[TableShape]
) -> Manifest:
    """Read all rows, raise what would fail after hours of scoring, and cut them into shards.

    A line on standard error names each row whose text is not valid Unicode.

    Args:
        corpus: The rows.
        settings: JSON values that a resumed run must share.
        chunk: Rows of a shard.
        shapes: The outputs, to be told their columns: one, or one per input file.

    Raises:
        ValueError: A row lacks a column, has an unknown label, or has a score's name as a column;
            the output's format can't hold a value. Names the row.
        TypeError: A value is not a string; names the row.
    """
    shards: list[ShardEntry] = []
    names = read_columns(corpus.columns, corpus.present)
    for rows in in_chunks(corpus.rows.placed(), chunk):
        cells = [row.cells for row in rows]
        _refuse_score_columns(corpus, cells)
        samples = corpus.samples(rows)
        places = [corpus.rows.place(row) for row in rows]
        with explained_columns(corpus.present), items_named(ItemPlaces(places, names)):
            check_samples(corpus.components, samples)
        for i, column in samples.invalid_unicode().items():
            write_line(f"{places[i]}: {names[column]} is not valid Unicode: its scores are NaN")
        for file, part in groupby(rows, key=lambda row: row.file):
            _add(shapes[min(file, len(shapes) - 1)], list(part), corpus.rows)
        shards.append(ShardEntry(len(rows), checksum(cells)))
    return Manifest(settings, chunk, shards)


def _add(shape: TableShape, rows: Sequence[PlacedRow], stream: RowStream) -> None:
    """Add rows to the shape of an output; an error names the row."""
    try:
        shape.add([row.cells for row in rows])
    except ValueError:
        for row in rows:
            try:
                shape.add([row.cells])
            except ValueError as error:
                raise ValueError(f"{stream.place(row)}: {error}") from None
        raise


def score_corpus(corpus: Corpus, manifest: Manifest, store: ShardStore, workers: Workers) -> None:
    """Score all shards that are not done yet, one unit of scorers after the other.

    The scorers of a unit share their models (`scoring_units`). A unit scores all rows and frees
    its models before the next one loads. Scorers that are not pointwise, such as `Distinct`, get
    all rows at once.
    """
    ranges = manifest.ranges
    rows = sum(map(len, ranges))
    for title, unit, pointwise in titled_units(corpus.components):
        missing = [store.missing(i, list(unit)) for i in range(len(ranges))]
        if not any(missing):
            continue
        done = sum(len(ranges[i]) for i, names in enumerate(missing) if not names and pointwise)
        with (
            explained_columns(corpus.present),  # again, for scorers that do not declare them
            track(title, rows, done=done) as advance,
        ):
            if not pointwise:
                for _, scores in workers.score(unit, _whole(corpus)):
                    for i, part in enumerate(ranges):
                        store.write(i, {n: v[part.start : part.stop] for n, v in scores.items()})
                advance(rows)
                continue
            # A run that is resumed on other devices may have other units, of which a part is done.
            for names in dict.fromkeys(filter(None, missing)):
                wanted = {i for i, lacking in enumerate(missing) if lacking == names}
                shards = _shards(corpus, manifest.chunk, wanted)
                for i, scores in workers.score({name: unit[name] for name in names}, shards):
                    store.write(i, scores)
                    advance(len(ranges[i]))


def put_together(
    corpus: Corpus,
    manifest: Manifest,
    store: ShardStore,
    outputs: Sequence[Location],
    shapes: Sequence[TableShape],
) -> Means:
    """Write the rows and their scores in the order of the input; return the sums of the scores.

    Args:
        corpus: The rows.
        manifest: Their shards.
        store: The scores of all shards.
        outputs: The output, or one per input file.
        shapes: Their columns.
    """
    names = list(corpus.components)
    rows_in_all = sum(shard.rows for shard in manifest.shards)
    means = Means(rows_in_all, dict.fromkeys(names, 0), dict.fromkeys(names, 0.0))
    with ExitStack() as open_files:
        current, writer = -1, None
        for i, rows in enumerate(in_chunks(corpus.rows.placed(), manifest.chunk)):
            scores = store.read(i)
            means.add(scores)
            start = 0
            for file, part in groupby(rows, key=lambda row: row.file):
                contents = [row.cells for row in part]
                output = min(file, len(outputs) - 1)
                if output != current:
                    open_files.close()
                    current = output
                    writer = open_files.enter_context(
                        _written(outputs[output], shapes[output], names)
                    )
                end = start + len(contents)
                assert writer is not None
                writer.write(contents, {name: s[start:end] for name, s in scores.items()})
                start = end
    return means


@contextmanager
def _written(output: Location, shape: TableShape, names: Sequence[str]) -> Iterator[TableWriter]:
    with output.whole_file() as file:
        writer = TableWriter(file, shape, names)
        yield writer
        writer.close()


def _whole(corpus: Corpus) -> Iterator[Shard]:
    """Yield all rows as one shard."""
    yield corpus.shard(0, list(corpus.rows.placed()))


def _shards(corpus: Corpus, chunk: int, wanted: set[int]) -> Iterator[Shard]:
    """Yield the shards that are wanted, as the rows are read."""
    for i, rows in enumerate(in_chunks(corpus.rows.placed(), chunk)):
        if i in wanted:
            yield corpus.shard(i, rows)


def _refuse_score_columns(corpus: Corpus, rows: Sequence[Row]) -> None:
    """Raise if a column of the input has the name of a score."""
    clashing = [name for name in corpus.components if any(name in row for row in rows)]
    if clashing:
        raise ValueError(
            f"{corpus.rows} already has columns with the names of scores ({', '.join(clashing)}): "
            "give --names, one per scorer, to prefix the names of their scores. If this is the "
            "output, give it after the texts"
        )
