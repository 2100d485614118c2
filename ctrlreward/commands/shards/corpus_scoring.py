"""Scores of a corpus of texts, one unit of scorers after the other, in memory or shard by shard."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ctrlreward.commands.shards.shard_store import (
    Manifest,
    ShardEntry,
    ShardStore,
    checksum,
    in_chunks,
)
from ctrlreward.commands.shards.workers import InProcess, Shard, Workers
from ctrlreward.items import ItemPlaces, items_named
from ctrlreward.progress import Count, show, track, write_line
from ctrlreward.samples import Samples
from ctrlreward.scorers import Component, CompositeScorer, ModelScorer, Scorer
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import PlacedRow, RowStream
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

    def add(self, scores: Mapping[str, Scores], rows: int) -> None:
        """Add the scores of some rows."""
        self.rows += rows
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
    for rows in in_chunks(corpus.rows.placed(), chunk):
        check_rows(corpus, rows, shapes)
        shards.append(ShardEntry(len(rows), checksum([row.cells for row in rows])))
    return Manifest(settings, chunk, shards)


def check_rows(corpus: Corpus, rows: Sequence[PlacedRow], shapes: Sequence[TableShape]) -> None:
    """Check rows that follow one another, and add them to the shapes; see `survey`."""
    _refuse_score_columns(corpus, rows)
    names = read_columns(corpus.columns, corpus.present)
    samples = corpus.samples(rows)
    places = [corpus.rows.place(row) for row in rows]
    with explained_columns(corpus.present), items_named(ItemPlaces(places, names)):
        check_samples(corpus.components, samples)
    for i, column in samples.invalid_unicode().items():
        write_line(f"{places[i]}: {names[column]} is not valid Unicode: its scores are NaN")
    for file, part in groupby(rows, key=lambda row: row.file):
        _add(shapes[min(file, len(shapes) - 1)], list(part), corpus.rows)


def score_rows(corpus: Corpus, rows: Sequence[PlacedRow], workers: Workers) -> dict[str, Scores]:
    """Score all rows of a corpus that fits in memory, one unit of scorers after the other.

    Returns:
        Arrays of shape (rows,) by name; NaN for rows that failed.
    """
    scores: dict[str, Scores] = {}
    shard = corpus.shard(0, rows)
    for title, unit, _ in titled_units(corpus.components):
        count = Count(title, len(rows))
        with explained_columns(corpus.present), show(count) as display:
            for _, part in workers.score(unit, [shard]):
                scores |= part
            count.done = len(rows)
            display.update()
    return {name: scores[name] for name in corpus.components}


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


def scored_shards(
    corpus: Corpus, manifest: Manifest, store: ShardStore
) -> Iterator[tuple[list[PlacedRow], dict[str, Scores]]]:
    """Yield the rows of each shard and their scores, as `write_output` takes them."""
    for i, rows in enumerate(in_chunks(corpus.rows.placed(), manifest.chunk)):
        yield rows, store.read(i)


def write_output(
    names: Sequence[str],
    scored: Iterable[tuple[Sequence[PlacedRow], Mapping[str, Scores]]],
    outputs: Sequence[Location],
    shapes: Sequence[TableShape],
) -> Means:
    """Write rows and their scores in the order of the input; return the sums of the scores.

    Args:
        names: Names of the scores.
        scored: Rows that follow one another, and their scores by name.
        outputs: The output, or one per input file.
        shapes: Their columns.
    """
    means = Means(0, dict.fromkeys(names, 0), dict.fromkeys(names, 0.0))
    with ExitStack() as open_files:
        current, writer = -1, None
        for rows, scores in scored:
            means.add(scores, len(rows))
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


def _refuse_score_columns(corpus: Corpus, rows: Sequence[PlacedRow]) -> None:
    """Raise if a column of the input has the name of a score."""
    clashing = [name for name in corpus.components if any(name in row.cells for row in rows)]
    if clashing:
        raise ValueError(
            f"{corpus.rows} already has columns with the names of scores ({', '.join(clashing)}): "
            "give --names, one per scorer, to prefix the names of their scores. If this is the "
            "output, give it after the texts"
        )


def score_in_chunks(
    components: Mapping[str, Component], samples: Samples, chunk: int
) -> dict[str, Scores]:
    """Score samples one unit of scorers at a time, and show the progress on standard error.

    The scorers of a unit share their models (`scoring_units`). A unit scores all rows and releases
    its models before the next one loads. Scorers that are not pointwise, such as `Distinct`, get
    all rows in one chunk.

    Args:
        components: The scores to compute, by the names of the result.
        samples: n samples.
        chunk: Rows to score at a time.

    Returns:
        Arrays of shape (n,) by name; NaN for samples that failed.
    """
    scores: dict[str, Scores] = {}
    for title, unit, pointwise in titled_units(components):
        chunks = _chunks(samples, chunk if pointwise else len(samples))
        parts: list[dict[str, Scores]] = []
        with InProcess() as worker, track(title, len(samples)) as advance:
            for _, part in worker.score(unit, chunks):
                parts.append(part)
                advance(len(next(iter(part.values()))))
        scores |= {name: np.concatenate([part[name] for part in parts]) for name in unit}
    return {name: scores[name] for name in components}


def _chunks(samples: Samples, size: int) -> Iterator[Shard]:
    for number, first in enumerate(range(0, len(samples), size)):
        part = samples[first : first + size]
        rows = range(len(part))
        yield Shard(number, part, rows, [f"sample {first + i}" for i in rows])


def models_of(scorer: Scorer) -> frozenset[Hashable]:
    """Return a key of each model that a scorer uses; scorers with equal keys share the model.

    A model is identified by all that it is loaded with: name, device, dtype and token budget. The
    set is empty for a scorer that is neither a `ModelScorer` nor a `CompositeScorer`.
    """
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

    A scorer joins a scorer that uses all of its models, so a unit holds no more models than one of
    its scorers needs alone. A scorer without a known model is a unit of its own, and so is one that
    shares its models only with scorers that are pointwise where it is not.

    Args:
        scorers: Distinct scorers.

    Returns:
        The units in the order of their first scorers, and their scorers in the given order.
    """
    largest_first = sorted(scorers, key=lambda scorer: -len(models_of(scorer)))
    units: list[list[Scorer]] = []
    for scorer in largest_first:
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
    """Yield the components of each scoring unit, with a title for its progress.

    Args:
        components: Scores by name.

    Yields:
        The title (`"CTRLEval, Perplexity (1 of 2)"`), the components of one unit by name, and
        True if its scorers are pointwise.
    """
    units = scoring_units(list(dict.fromkeys(c.scorer for c in components.values())))
    for number, unit in enumerate(units, 1):
        title = ", ".join(type(scorer).__name__ for scorer in unit)
        title += f" ({number} of {len(units)})" if len(units) > 1 else ""
        own = {name: c for name, c in components.items() if c.scorer in unit}
        yield title, own, unit[0].pointwise
