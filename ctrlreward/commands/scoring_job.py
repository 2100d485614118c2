"""Scores of a file, for arguments that `score.py` has checked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from filelock import FileLock, Timeout
from rich.table import Table

from ctrlreward.commands.command_parser import command_parser, known_scorers
from ctrlreward.commands.score import STANDARD, open_rows
from ctrlreward.commands.shards.corpus_scoring import (
    Corpus,
    Means,
    check_rows,
    score_corpus,
    score_rows,
    scored_shards,
    survey,
    write_output,
)
from ctrlreward.commands.shards.process_workers import ProcessWorkers
from ctrlreward.commands.shards.ray_workers import RayOptions, RayWorkers
from ctrlreward.commands.shards.shard_store import Manifest, ShardStore, in_chunks
from ctrlreward.commands.shards.workers import InProcess, Workers
from ctrlreward.commands.terminal import direction_arrow, plain_console, user_errors
from ctrlreward.progress import write_line
from ctrlreward.samples import Samples
from ctrlreward.scorers import Component, Scorer
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import RowStream, parse_rows
from ctrlreward.tables.table_columns import Columns, explained_columns, to_samples
from ctrlreward.tables.table_writing import TableShape, encode_rows

_RESUME = ": repeat the command to resume"

# Options of scorers that may change when a run is resumed: they don't change the scores.
_NOT_IDENTITY = ("device", "batch_tokens")


def run_job(arguments: list[str], usage: str, description: str, examples: Sequence[str]) -> None:
    """Score a file, or resume an interrupted run.

    Args:
        arguments: Options and positional arguments, as `gather_words` returns them.
        usage: See `command_parser`.
        description: See there.
        examples: See there.

    Raises:
        SystemExit: With status 2 after an error of the user, 130 after an interruption.
    """
    parser = command_parser("ctrlreward score", usage, description, examples)
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip={"identity"})
    config = parser.parse_args(arguments)
    identity = _identity(config.as_dict()["scorers"])
    with user_errors(parser):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        try:
            score_file(**options, identity=identity)
        except KeyboardInterrupt:
            target = Location(options["output"])
            print(f"interrupted{_RESUME if _partial(target).exists() else ''}", file=sys.stderr)
            raise SystemExit(130) from None


def score_file(
    input: str,
    output: str,
    *,
    scorers: list[Scorer],
    names: list[str] | None = None,
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    label_map: list[str] | None = None,
    chunk: int = 256,
    workers: int = 1,
    threads: int | None = None,
    engine: Literal["process", "ray"] = "process",
    ray: RayOptions = RayOptions(),  # noqa: B008 — it is frozen
    identity: Any = None,
) -> None:
    """Score the texts of a file or a folder and print a summary.

    Args:
        input: The texts: a .jsonl, .csv or .parquet file, or a folder of such files, by path or by
            URL (`s3://bucket/texts.jsonl`); `-` is standard input, as JSONL.
        output: File for the input's columns and the scores: .jsonl, .csv or .parquet. For a folder
            of texts also a folder, for a file per file; `-` is standard output, as JSONL. Until it
            is complete, scores of more than one shard are kept in the folder OUTPUT.partial,
            unless input or output is `-`.
        scorers: One or more scorers, each followed by its options: `--scorers CTRLEval Perplexity`,
            `--scorers CTRLEval --scorers.task=topic --scorers Perplexity`, or a list in the YAML
            file.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`):
            `--names small large`. Needed where two scorers have scores of the same name.
        columns: Column names of the input file; null ignores a column (`--columns.prefix=null`).
        label_map: Labels of the file and the scorers' labels in their place: `--label-map
            0=negative 1=positive`.
        chunk: Rows of a shard, which is scored and saved whole. A run that is resumed keeps its
            own. An input of no more rows is read once and scored in memory.
        workers: Processes or actors that score, each with models of its own; one process is this
            one.
        threads: Threads of PyTorch in each worker; null is PyTorch's choice for one process,
            shares the cores among several, and gives an actor its CPUs.
        engine: Workers are processes of this machine, or actors of Ray.
        ray: The cluster, and CPUs and GPUs of an actor.
        identity: Configuration of the scorers, which a resumed run must share.

    Raises:
        ValueError: A row can't be scored, or a value not be written (names it); two scores, or a
            score and a column of the input, have the same name; the run can't be resumed because
            the columns or the scorers have changed; the output exists and does not belong to this
            input; or another process is writing it.
    """
    for name, number in (("chunk", chunk), ("workers", workers), ("threads", threads)):
        if number is not None and number < 1:
            raise ValueError(f"{name} = {number}: give a positive number")
    labels = _label_map(label_map)
    with _locations(input, output) as (source, target, resumable):
        rows = open_rows(source, target)
        head = list(islice(rows.placed(), chunk + 1))
        first = head[0]
        present = list(first.cells)
        sample = to_samples([first.cells], columns, [rows.place(first)], present, labels)
        with explained_columns(present):
            components = name_components(scorers, names, sample)
        corpus = Corpus(rows, columns, components, present, labels)
        outputs = _outputs(rows, target)
        shapes = [TableShape(file.suffix) for file in outputs]
        partial = _partial(resumable)
        with _output_lock(target):
            _refuse_former_log(target)
            pool = _workers(engine, workers, threads, ray)
            if len(head) <= chunk and not target.exists() and not partial.exists():
                check_rows(corpus, head, shapes)
                with pool:
                    scores = score_rows(corpus, head, pool)
                means = write_output(list(components), [(head, scores)], outputs, shapes)
            else:
                del head
                settings = {
                    "version": version("ctrlreward"),  # another one may score differently
                    "columns": asdict(columns),
                    "label_map": labels,
                    "scorers": [identity, list(components)],
                }
                store = ShardStore(partial, list(components))
                started = store.manifest()
                manifest = survey(corpus, settings, started.chunk if started else chunk, shapes)
                if started:
                    _resume(manifest, started, store, corpus)
                elif target.exists():
                    inputs = [rows] if len(outputs) == 1 else [RowStream(f) for f in rows.files]
                    for file, shape, its_rows in zip(outputs, shapes, inputs, strict=True):
                        _require_complete(file, shape, its_rows, components)
                    print(
                        f"{output} is already complete: delete it to score {input} again. Changes "
                        "of --columns or of the scorers' options are not detected"
                    )
                    return
                else:
                    store.start(manifest)
                with pool:
                    score_corpus(corpus, manifest, store, pool)
                shards = scored_shards(corpus, manifest, store)
                means = write_output(list(components), shards, outputs, shapes)
                store.folder.remove()
        if output == STANDARD:
            with target.open() as scored:
                shutil.copyfileobj(scored, sys.stdout.buffer)
            sys.stdout.flush()
        plain_console(stderr=output == STANDARD).print(_means_table(means, components))


@contextmanager
def _locations(input: str, output: str) -> Iterator[tuple[Location, Location, Location]]:
    """Yield input, output and the output beside which an unfinished run is kept.

    Standard input is copied to a temporary folder, since it is read several times; so is what goes
    to standard output, until it is complete.
    """
    if STANDARD not in (input, output):
        target = Location(output)
        yield Location(input), target, target
        return
    write_line("an interrupted run can't be resumed: it reads or writes a pipe")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, target = Location(input), Location(output)
        if input == STANDARD:
            with open(folder / "stdin.jsonl", "wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
            source = Location(folder / "stdin.jsonl", "stdin")
        if output == STANDARD:
            target = Location(folder / "stdout.jsonl", "stdout")
        yield source, target, Location(folder / "stdout.jsonl")


def _label_map(pairs: Sequence[str] | None) -> dict[str, str] | None:
    """Return labels of the file and those of the scorers from `["0=negative", "1=positive"]`.

    Raises:
        ValueError: A pair has no `=`.
    """
    if pairs is None:
        return None
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"label_map = {list(pairs)}: {pair!r} is not OLD=NEW, 0=negative")
    return dict(pair.split("=", 1) for pair in pairs)


def _resume(manifest: Manifest, started: Manifest, store: ShardStore, corpus: Corpus) -> None:
    """Keep the scores of an unfinished run whose rows have not changed, and delete the others.

    The manifest is replaced last: what a kill leaves is compared with the old one again.

    Raises:
        ValueError: The settings have changed.
    """
    manifest.require_same_settings(started, str(store.folder))
    changed = manifest.changed_shards(started)
    if not changed:
        return
    shards = max(len(manifest.shards), len(started.shards))
    of_all_rows = [n for n, c in corpus.components.items() if not c.scorer.pointwise]
    store.drop(changed, list(corpus.components))
    store.drop(range(shards), of_all_rows)
    store.start(manifest)
    kept = len(manifest.shards) - sum(number < len(manifest.shards) for number in changed)
    line = f"{corpus.rows} has changed: {kept} of {len(manifest.shards)} shards are kept"
    if of_all_rows:
        line += f", except {', '.join(of_all_rows)}, which depend on all rows"
    write_line(line)


def name_components(
    scorers: Sequence[Scorer], names: Sequence[str] | None, samples: Samples | None = None
) -> dict[str, Component]:
    """Return all scores of some scorers by name, or those that the columns allow.

    Args:
        scorers: One or more.
        names: One per scorer, for keys such as `"small.coherence"`; None uses the scores' own
            names.
        samples: Samples with the columns that will be scored; None takes all scores.

    Raises:
        ValueError: There are no scorers, not one distinct name per scorer, or two scores have the
            same name.
    """
    if not scorers:
        raise ValueError(f"scorers is empty: give one or more of {', '.join(known_scorers())}")
    if names is not None and (len(names) != len(scorers) or len(set(names)) != len(names)):
        raise ValueError(
            f"names = {list(names)} for {len(scorers)} scorers: give one distinct name per scorer"
        )
    components: dict[str, Component] = {}
    for position, scorer in enumerate(scorers):
        for score in scorer.specs if samples is None else scorer.computable(samples):
            name = f"{names[position]}.{score}" if names else score
            if name in components:
                raise ValueError(
                    f"two scorers have a score {name!r}: give --names, one per scorer, to prefix "
                    "the names of their scores"
                )
            components[name] = scorer[score]
    return components


def _identity(configuration: Any) -> Any:
    """Drop the options that don't change the scores from a configuration."""
    if isinstance(configuration, dict):
        return {k: _identity(v) for k, v in configuration.items() if k not in _NOT_IDENTITY}
    if isinstance(configuration, list | tuple):
        return [_identity(item) for item in configuration]
    return configuration if isinstance(configuration, int | float | None) else str(configuration)


def _partial(output: Location) -> Location:
    """Return the folder that keeps the scores of an unfinished run."""
    return output.beside(f"{output.name}.partial")


def _outputs(rows: RowStream, target: Location) -> list[Location]:
    """Return the output, or one per file of the input if it is a folder."""
    return [target] if target.suffix else [target.child(file.name) for file in rows.files]


@contextmanager
def _output_lock(output: Location) -> Iterator[None]:
    """Keep other processes of this machine from scoring into the same output.

    Raises:
        ValueError: Another process holds the lock.
    """
    if output.path is None:
        yield
        return
    path = output.path.with_name(f".{output.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process is scoring into {output}: wait for it, or give another output"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # some systems can't delete an open file
            path.unlink()
        lock.release()


def _refuse_former_log(output: Location) -> None:
    """Raise if version 0.2 or earlier has left an unfinished run."""
    log = output.beside(f"{output.name}.partial.jsonl")
    if log.exists():
        raise ValueError(
            f"{log} is an unfinished run of ctrlreward 0.2.0 or earlier: finish it with that "
            "version, or delete it to start over"
        )


def _workers(engine: str, workers: int, threads: int | None, ray: RayOptions) -> Workers:
    if engine == "ray":
        return RayWorkers(workers, ray, threads)
    return InProcess(threads) if workers == 1 else ProcessWorkers(workers, threads)


def _require_complete(
    output: Location, shape: TableShape, rows: RowStream, components: Mapping[str, Component]
) -> None:
    """Raise if an existing output lacks scores or was made from another input.

    Args:
        output: The existing file.
        shape: Columns of the output without the scores.
        rows: The input.
        components: The scores that the output must have.
    """
    found = RowStream(output)
    first = next(iter(found))
    problems = [f"no {name}" for name in components if name not in first]
    counts = sum(1 for _ in found), sum(1 for _ in rows)
    if counts[0] != counts[1]:
        problems.append(f"{counts[0]} rows instead of {counts[1]}")
    if problems:
        raise ValueError(
            f"{output} exists but is not a complete output of this command: it has "
            f"{', '.join(problems)}. Give another output, or delete it"
        )
    existing = in_chunks(found, 256)
    for number, (has, given) in enumerate(zip_longest(existing, in_chunks(rows, 256))):
        carried = parse_rows(encode_rows(output.suffix, given, {}, shape), Path(output.name))
        for i, (row, expected) in enumerate(zip(has, carried, strict=True), 256 * number):
            for name, value in expected.items():
                if repr(row.get(name)) != repr(value):  # repr, because NaN is not equal to itself
                    raise ValueError(
                        f"{output} exists but was made from other rows: {name}[{i}] is "
                        f"{row.get(name)!r}, not {value!r}. Give another output, or delete it to "
                        "score again"
                    )


def _means_table(means: Means, components: Mapping[str, Component]) -> Table:
    """Return a table of each score's direction, mean and number of failed rows."""
    table = Table(title="Means (↑ higher is better, ↓ lower is better)")
    table.add_column("score")
    for heading in ("mean", "rows", "failed"):
        table.add_column(heading, justify="right")
    for name, component in components.items():
        scored = means.scored[name]
        mean = f"{means.mean(name):.4f}" if scored else "–"
        failed = means.rows - scored
        label = f"{name} {direction_arrow(component.spec)}"
        table.add_row(label, mean, str(means.rows), str(failed))
    return table
