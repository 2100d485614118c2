"""A corpus of texts, scored shard by shard: checked, scored, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ctrlreward.commands.formats.locations import Location
from ctrlreward.commands.formats.row_streams import Row, RowStream
from ctrlreward.commands.formats.table_writing import TableShape, TableWriter
from ctrlreward.commands.formats.tables import Columns, explained_columns, to_samples
from ctrlreward.commands.scoring_units import titled_units
from ctrlreward.commands.shards.manifest import Manifest, ShardEntry, checksum, in_chunks
from ctrlreward.commands.shards.shard_store import ShardStore
from ctrlreward.commands.shards.workers import Shard, Workers
from ctrlreward.progress import track
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, check_columns


@dataclass(frozen=True)
class Corpus:
    """Rows of a table with texts, read anew for each use.

    Attributes:
        rows: The rows.
        columns: Which of them scorers read.
        components: The scores to compute, by column of the output.
        present: Columns of the first row.
    """

    rows: RowStream
    columns: Columns
    components: Mapping[str, Component]
    present: Sequence[str]

    def samples(self, rows: Sequence[Row], first: int) -> Samples:
        """Return the samples of rows that follow one another, from row `first` on."""
        return to_samples(rows, self.columns, first, self.present)


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

    Args:
        corpus: The rows.
        settings: JSON values that a resumed run must share.
        chunk: Rows of a shard.
        shapes: The outputs, to be told their columns: one, or one per input file.

    Raises:
        ValueError: A row lacks a column, or has a score's name as a column; the output's format
            can't hold a value.
        TypeError: A value is not a string; names the row.
    """
    shards: list[ShardEntry] = []
    for rows in in_chunks(corpus.rows.with_files(), chunk):
        contents = [row for _, row in rows]
        _refuse_score_columns(corpus, contents)
        samples = corpus.samples(contents, len(shards) * chunk)
        if not shards:
            with explained_columns(corpus.present):
                check_columns(corpus.components, samples)
        for file, part in groupby(rows, key=lambda pair: pair[0]):
            shapes[min(file, len(shapes) - 1)].add([row for _, row in part])
        shards.append(ShardEntry(len(rows), checksum(contents)))
    return Manifest(settings, chunk, shards)


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
                for _, scores in workers.score(unit, _whole(corpus, rows)):
                    for i, part in enumerate(ranges):
                        store.write(i, {n: v[part.start : part.stop] for n, v in scores.items()})
                advance(rows)
                continue
            # A run that is resumed on other devices may have other units, of which a part is done.
            for names in dict.fromkeys(filter(None, missing)):
                wanted = {i for i, lacking in enumerate(missing) if lacking == names}
                shards = _shards(corpus, ranges, wanted)
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
        for i, rows in enumerate(in_chunks(corpus.rows.with_files(), manifest.chunk)):
            scores = store.read(i)
            means.add(scores)
            start = 0
            for file, part in groupby(rows, key=lambda pair: pair[0]):
                contents = [row for _, row in part]
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


def _whole(corpus: Corpus, total: int) -> Iterator[Shard]:
    """Yield all rows as one shard."""
    yield Shard(0, range(total), corpus.samples(list(corpus.rows), 0))


def _shards(corpus: Corpus, ranges: Sequence[range], wanted: set[int]) -> Iterator[Shard]:
    """Yield the shards that are wanted, as the rows are read."""
    for i, rows in enumerate(in_chunks(corpus.rows, len(ranges[0]))):
        if i in wanted:
            yield Shard(i, ranges[i], corpus.samples(rows, ranges[i].start))


def _refuse_score_columns(corpus: Corpus, rows: Sequence[Row]) -> None:
    """Raise if a column of the input has the name of a score."""
    clashing = [name for name in corpus.components if any(name in row for row in rows)]
    if clashing:
        raise ValueError(
            f"{corpus.rows} already has columns with the names of scores ({', '.join(clashing)}): "
            "give --names, one per scorer, to prefix the names of their scores. If this is the "
            "output, give it after the texts"
        )
