"""Scores of a file, for arguments checked by `score.py`."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import chain, islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from ctrlreward.arguments import positive
from ctrlreward.command_line.parser import command_parser
from ctrlreward.command_line.terminal import (
    direction_arrow,
    number_table,
    plain_console,
    printable,
    user_errors,
)
from ctrlreward.command_line.typed_options import pairs
from ctrlreward.corpus.corpus_scoring import (
    Corpus,
    check_corpus,
    check_shard,
    score_corpus,
    score_in_memory,
    scoring_units,
    unchanged_shards,
    write_output,
)
from ctrlreward.corpus.ray_workers import RayWorkers
from ctrlreward.corpus.shard_store import Manifest, ShardStore, in_chunks
from ctrlreward.corpus.workers import ProcessWorkers, ScoreShards, in_process
from ctrlreward.files import hold, require_same
from ctrlreward.progress import write_line
from ctrlreward.ray_cluster import RayOptions
from ctrlreward.scorers import Component, Scorer
from ctrlreward.scorers.components import name_components
from ctrlreward.tables.locations import STANDARD, Location
from ctrlreward.tables.row_streams import RowStream, open_rows, parse_rows
from ctrlreward.tables.table_columns import Columns, explained_columns
from ctrlreward.tables.table_writing import TableShape, encode_rows

# Options of scorers that may change when a run is resumed: they don't change the scores.
_NOT_IDENTITY = ("device", "batch_tokens")


def run_job(arguments: list[str], usage: str, description: str, examples: Sequence[str]) -> None:
    """Score a file, or resume an interrupted run."""
    parser = command_parser("ctrlreward score", usage, description, examples)
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip={"identity"})
    config = parser.parse_args(arguments)
    identity = json.loads(
        parser.dump(config, format="json"),  # functions by their paths
        object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in _NOT_IDENTITY},
    )["scorers"]

    def resumes() -> bool:
        target = _target(config.output)
        return target.beside(f"{target.name}.partial").exists()

    with user_errors(resumes, maps_labels=True):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        score_file(**options, identity=identity)


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
            `--names small large`. Needed if two scorers have scores of the same name.
        columns: Column names of the input file; null ignores a column (`--columns.prefix=null`).
        label_map: Labels of the file and their replacements: `--label-map
            0=negative 1=positive`.
        chunk: Rows of a shard, which is scored and saved whole. A resumed run keeps its
            chunk size. An input of no more rows is read once and scored in memory.
        workers: Processes or actors that score, each with separate models; a single process is
            this one.
        threads: Threads of PyTorch in each worker; null is PyTorch's choice for one process,
            shares the cores among several, and gives an actor its CPUs.
        engine: Workers are processes of this machine, or actors of Ray.
        ray: The cluster, and CPUs and GPUs of an actor.
        identity: Configuration of the scorers, which a resumed run must share.
    """
    for name, number in (("chunk", chunk), ("workers", workers), ("threads", threads)):
        positive(name, number)
    labels = pairs("label_map", "OLD=NEW, such as 0=negative", label_map) or None
    with ExitStack() as stack:
        source, target = Location(input), _target(output)
        partial = target.beside(f"{target.name}.partial")
        if STANDARD in (input, output):
            source, target, partial = stack.enter_context(_piped(source, target))
        rows = open_rows(source, target)
        outputs = [target] if target.suffix else [target.child(file.name) for file in rows.files]
        shapes = [TableShape(file.suffix) for file in outputs]
        head = list(islice(rows.placed(), chunk + 1))
        corpus = Corpus(rows, columns, list(head[0].cells), labels)
        first = corpus.shard(0, head[:chunk])
        if all(
            re.fullmatch(r"[-+]?[\d.]*(e[-+]?\d+)?", text.strip()) for text in first.samples.texts
        ):
            note = "has numbers or nothing in the first rows. Name the column of the texts with"
            write_line(printable(f"{source}: {columns.text} {note} --columns.text=COLUMN."))
        stack.enter_context(explained_columns(corpus.present))
        components = name_components(scorers, names, first.samples)
        if target.path is not None:
            lock = target.path.with_name(f".{target.name}.lock")
            advice = "Wait for it, or use another output."
            stack.enter_context(hold(lock, output, advice, temporary=True))
        pool: AbstractContextManager[ScoreShards] = in_process(threads)
        if engine == "ray":
            pool = RayWorkers(workers, ray, threads)
        elif workers > 1:
            pool = ProcessWorkers(workers, threads)
        if len(head) <= chunk and not target.exists() and not partial.exists():
            check_shard(corpus, components, first, head, shapes)
            with pool as score_shards:
                scores = score_in_memory(components, first, score_shards)
            summary = write_output(list(components), [(head, scores)], outputs, shapes)
        else:
            del head, first
            settings = {
                "version": version("ctrlreward"),  # another one may score differently
                "columns": asdict(columns),
                "label_map": labels,
                "scorers": [identity, list(components)],
            }
            store = ShardStore(partial, list(components))
            started = store.manifest()
            if started:
                chunk = started.chunk
            manifest = check_corpus(corpus, components, settings, chunk, shapes)
            if started:
                _resume(manifest, started, store, corpus, components)
            elif target.exists():
                inputs = [rows] if len(outputs) == 1 else [RowStream(f) for f in rows.files]
                for file, shape, its_rows in zip(outputs, shapes, inputs, strict=True):
                    _require_complete(file, shape, its_rows, components)
                print(
                    f"{output} is already complete. Delete it to score {input} again. Changes "
                    "of --columns or of the scorers' options are not detected."
                )
                return
            with pool as score_shards:
                if not started:
                    if workers == 1 and engine != "ray":
                        for scorer in chain(*scoring_units(scorers)[1:]):
                            scorer.load()  # a model may be missing, and the first unit take hours
                            scorer.release()
                    store.start(manifest)
                score_corpus(corpus, components, manifest, store, score_shards)
            read = enumerate(unchanged_shards(corpus, manifest))
            shards = ((rows, store.read(i)) for i, rows in read)
            summary = write_output(list(components), shards, outputs, shapes)
            store.folder.remove()
        if output == STANDARD:
            with target.open() as scored:
                shutil.copyfileobj(scored, sys.stdout.buffer)
            sys.stdout.flush()
        table = number_table(["score"], ["mean", "rows", "failed"])
        for name, (mean, count, failed) in summary.items():
            shown = f"{mean:.4f}" if failed < count else "–"
            label = f"{name} {direction_arrow(components[name].spec)}"
            table.add_row(label, shown, str(count), str(failed))
        console = plain_console(stderr=output == STANDARD)
        console.print("Means (↑ higher is better, ↓ lower is better)", table)


def _target(output: str) -> Location:
    """Return the file or folder that an output is, or is a symbolic link to."""
    target = Location(output)
    if target.path is None or not target.path.is_symlink():
        return target
    return Location(os.path.realpath(target.path), output)


@contextmanager
def _piped(source: Location, target: Location) -> Iterator[tuple[Location, Location, Location]]:
    """Yield input, output and folder of the unfinished run, in a temporary folder for pipes."""
    write_line("an interrupted run can't be resumed: it reads or writes a pipe")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if str(source) == STANDARD:
            with open(folder / "stdin.jsonl", "wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
            source = Location(folder / "stdin.jsonl", "stdin")
        if str(target) == STANDARD:
            target = Location(folder / "stdout.jsonl", "stdout")
        yield source, target, Location(folder / "partial")


def _resume(
    manifest: Manifest,
    started: Manifest,
    store: ShardStore,
    corpus: Corpus,
    components: Mapping[str, Component],
) -> None:
    """Keep the scores of an unfinished run whose rows have not changed, and delete the others."""
    require_same(
        json.loads(json.dumps(manifest.settings)), started.settings, store.folder, "folder"
    )
    pairs = enumerate(zip_longest(manifest.checksums, started.checksums))
    changed = [shard for shard, (now, was) in pairs if now != was]  # or only one run has it
    if not changed:
        return
    of_all_rows = [name for name, c in components.items() if not c.scorer.pointwise]
    store.drop(changed, list(components))
    count = len(manifest.checksums)
    store.drop(range(max(count, len(started.checksums))), of_all_rows)
    store.start(manifest)  # last: after a kill, the remains are compared with the old one again
    kept = count - sum(shard < count for shard in changed)
    line = f"{corpus.rows} has changed: {kept} of {count} shards are kept"
    if of_all_rows:
        line += f", except {', '.join(of_all_rows)}, which depend on all rows"
    write_line(line)


def _require_complete(
    output: Location, shape: TableShape, rows: RowStream, components: Mapping[str, Component]
) -> None:
    """Raise if an existing output lacks scores or was made from another input."""
    found = RowStream(output)
    first = next(iter(found))
    problems = [f"no {name}" for name in components if name not in first]
    counts = sum(1 for _ in found), sum(1 for _ in rows)
    if counts[0] != counts[1]:
        problems.append(f"{counts[0]} rows instead of {counts[1]}")
    if problems:
        raise ValueError(
            f"{output} exists but is not a complete output of this command: it has "
            f"{', '.join(problems)}. Use another output, or delete it."
        )
    existing = in_chunks(found, 256)
    for number, (has, unscored) in enumerate(zip_longest(existing, in_chunks(rows, 256))):
        carried = parse_rows(encode_rows(output.suffix, unscored, {}, shape), Path(output.name))
        for i, (row, expected) in enumerate(zip(has, carried, strict=True), 256 * number):
            for name, value in expected.items():
                if repr(row.get(name)) != repr(value):  # repr, because NaN is not equal to itself
                    raise ValueError(
                        f"{output} exists but was made from other rows: {name}[{i}] is "
                        f"{row.get(name)!r}, not {value!r}. Use another output, or delete it to "
                        "score again."
                    )
