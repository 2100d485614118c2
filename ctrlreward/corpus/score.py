"""Command `ctrlreward score`: scores for a file of texts."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.command_line.parser import command_parser
from ctrlreward.command_line.terminal import (
    direction_arrow,
    number_table,
    plain_console,
    user_errors,
)
from ctrlreward.command_line.typed_options import gather_words, pairs
from ctrlreward.corpus.parts import consecutive, score_parts
from ctrlreward.failures import Failures, ItemError, rows_named
from ctrlreward.files import JsonLog, hold, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.samples import Samples
from ctrlreward.scorers import Component, Scorer
from ctrlreward.scorers.base import Scores, check_samples, score
from ctrlreward.scorers.components import name_components
from ctrlreward.tables.row_streams import Row, check_suffix, parse_rows, placed_rows, read_rows
from ctrlreward.tables.table_columns import Columns, explained_columns, read_columns, to_samples
from ctrlreward.tables.table_writing import encode_rows

_DESCRIPTION = """Score the texts of a JSONL, CSV or Parquet file.

Repeat the command to resume an interrupted run."""

_EXAMPLES = (
    "ctrlreward score texts.jsonl scored.csv --scorers CTRLEval Perplexity",
    "ctrlreward score texts.csv scored.csv --columns.text=output --scorers Perplexity",
    "ctrlreward score texts.jsonl topic.jsonl --scorers CTRLEval --scorers.task=topic "
    "--columns.label=topic",
    "ctrlreward score texts.jsonl scored-1.jsonl --shard 1/2 --scorers Perplexity",
)

_USAGE = "INPUT OUTPUT --scorers NAME [NAME ...] [options]"

# Options that take lists of words; all others take one.
_LISTS = {"--scorers", "--names", "--label_map"}

# Options of scorers that may change when a run is resumed: they don't change the scores.
_NOT_IDENTITY = ("device", "batch_tokens")

PART = 256  # rows that are scored and saved together

# Warnings from one line of code that are shown; a table may have thousands of failed rows.
_SHOWN = 3


def run(arguments: list[str]) -> None:
    """Score a file, or resume an interrupted run."""
    parser = command_parser("ctrlreward score", _USAGE, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip={"identity"})
    config = parser.parse_args(gather_words(arguments, _LISTS))
    identity = json.loads(
        parser.dump(config, format="json"),  # functions by their paths
        object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in _NOT_IDENTITY},
    )["scorers"]
    with user_errors(lambda: _log_path(config.output).exists()):
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
    shard: str | None = None,
    identity: Any = None,
) -> None:
    """Score the texts of a file and print a summary.

    Args:
        input: The texts: a .jsonl, .csv or .parquet file, by path or by URL
            (`s3://bucket/texts.jsonl`).
        output: File for the input's columns and the scores, .jsonl, .csv or .parquet. It appears
            when it is complete; until then, the scores so far are in OUTPUT.partial.jsonl.
        scorers: One or more scorers, each followed by its options: `--scorers CTRLEval Perplexity`,
            `--scorers CTRLEval --scorers.task=topic --scorers Perplexity`, or a list in the YAML
            file.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`):
            `--names small large`. Needed if two scorers have scores of the same name.
        columns: Column names of the input file; null ignores a column (`--columns.prefix=null`).
        label_map: Labels of the file and their replacements: `--label-map
            0=negative 1=positive`.
        shard: `2/4` scores the second quarter of the rows, for several processes.
        identity: Configuration of the scorers, which a resumed run must share.
    """
    labels = pairs("label_map", "OLD=NEW, such as 0=negative", label_map) or None
    target = Path(output)
    check_suffix(target)
    if target.exists() and Path(input).exists() and target.samefile(input):
        raise ValueError(f"{output} is the input. Choose another file for the scores.")
    rows, places = _read(input, shard)
    samples = to_samples(rows, columns, places, label_map=labels)
    read = read_columns(columns, list(rows[0]))
    with explained_columns(list(rows[0])), rows_named(places, read):
        components = name_components(scorers, names, samples)
        check_samples(components, samples)
    if clashing := [name for name in components if any(name in row for row in rows)]:
        raise ValueError(
            f"{input} already has columns with the names of scores ({', '.join(clashing)}). "
            "Pass --names, one per scorer, to prefix the names of their scores."
        )
    of_all_rows = [name for name, c in components.items() if not c.scorer.pointwise]
    if shard and of_all_rows:
        raise ValueError(f"{', '.join(of_all_rows)} needs all rows, not a shard of them")
    _check_output(target.suffix, rows, places)
    content = repr(rows).encode("utf-8", "backslashreplace")
    settings = {
        "version": version("ctrlreward"),  # another one may score differently
        "sha256 of the rows": hashlib.sha256(content).hexdigest(),
        "rows of a part": PART,
        "columns": asdict(columns),
        "label_map": labels,
        "scorers": [identity, list(components)],
    }
    log = JsonLog(_log_path(output), settings)
    lock = target.with_name(f".{target.name}.lock")
    with hold(lock, output, "Wait for it, or use another output.", temporary=True):
        if target.exists() and not log.path.exists():
            _require_complete(target, rows, list(components))
            print(f"{output} is already complete. Delete it to score {input} again.")
            return
        scores = _scores(log, components, samples, places, read)
        write_whole(target, encode_rows(target.suffix, rows, scores))
        log.path.unlink(missing_ok=True)
    _print_summary(components, scores)


def _scores(
    log: JsonLog,
    components: Mapping[str, Component],
    samples: Samples,
    places: Sequence[str],
    read: Mapping[str, str],
) -> dict[str, Scores]:
    """Return the scores of n rows, shape (n,) by name; continue where the log ends.

    Errors and warnings name rows by `places`, and columns of the samples by `read`.
    """
    log.read()  # raises for other settings, before a model is loaded
    for component in components.values():
        component.scorer.load()  # one may be missing, and another take hours
    warnings, failures = FirstWarnings(), Failures()

    def scores_of(wanted: Mapping[str, Component], part: Sequence[int]) -> Mapping[str, Scores]:
        its_places = [places[i] for i in part]
        with warnings.on_handlers(), rows_named(its_places, read):
            try:
                found = score(wanted, samples[list(part)])
            except ItemError:
                raise
            except Exception as error:
                error.add_note(f"(while scoring {its_places[0]} to {its_places[-1]})")
                raise
        for i, reason in found.failures.items():
            failures.add(part[i], reason)
        return found.scores

    scores: dict[str, Scores] = {}
    if alone := {name: c for name, c in components.items() if c.scorer.pointwise}:
        parts = consecutive(len(samples), PART)
        scores |= score_parts(log, parts, lambda part: scores_of(alone, part))
    if of_all_rows := {name: c for name, c in components.items() if not c.scorer.pointwise}:
        scores |= scores_of(of_all_rows, range(len(samples)))
    failures.warn(len(samples), places)
    return {name: scores[name] for name in components}


def _log_path(output: str) -> Path:
    target = Path(output)
    return target.with_name(f"{target.name}.partial.jsonl")


def _read(input: str, shard: str | None) -> tuple[list[Row], list[str]]:
    """Return the rows of a file, or of its shard `i/n`, and the place of each."""
    placed = placed_rows(input)
    if shard is not None:
        match = re.fullmatch(r"(\d+)/(\d+)", shard)
        i, n = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= i <= n:
            raise ValueError(f"shard must be from 1/n to n/n, such as 2/4, got {shard!r}")
        count = sum(1 for _ in placed_rows(input))
        if count < n:
            raise ValueError(f"{input} has {count} rows, must have as many as shards, {n}, or more")
        placed = islice(placed, count * (i - 1) // n, count * i // n)
    places, rows = zip(*placed, strict=True)
    return list(rows), list(places)


def _check_output(suffix: str, rows: Sequence[Row], places: Sequence[str]) -> None:
    """Raise, before anything is scored, if an output can't have a row; name the row."""
    try:
        encode_rows(suffix, rows, {})
    except ValueError:
        for row, place in zip(rows, places, strict=True):
            try:
                encode_rows(suffix, [row], {})
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
        raise


def _require_complete(output: Path, rows: Sequence[Row], names: Sequence[str]) -> None:
    """Raise if an existing output lacks scores or was made from other rows."""
    expected = parse_rows(encode_rows(output.suffix, rows, {}), output)
    found = read_rows(output)
    carried = [
        {name: row.get(name) for name in cells} for row, cells in zip(found, expected, strict=False)
    ]
    lacks = [name for name in names if name not in found[0]]
    # repr, because NaN is not equal to itself
    if lacks or len(found) != len(expected) or repr(carried) != repr(expected):
        problem = f"has no {', '.join(lacks)}" if lacks else "was made from other rows"
        raise ValueError(f"{output} exists but {problem}. Use another output.")


def _print_summary(components: Mapping[str, Component], scores: Mapping[str, Scores]) -> None:
    table = number_table(["score"], ["mean", "rows", "failed"])
    for name, values in scores.items():
        failed = int(np.isnan(values).sum())
        mean = f"{valid_mean(values):.4f}" if failed < len(values) else "–"
        label = f"{name} {direction_arrow(components[name].spec)}"
        table.add_row(label, mean, str(len(values)), str(failed))
    plain_console().print("Means (↑ higher is better, ↓ lower is better)", table)


class FirstWarnings(logging.Filter):
    """Passes the first warnings of each line of code."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say at the last warning of a line of code that it is the last."""
        if record.levelno != logging.WARNING:
            return True
        line = record.pathname, record.lineno
        self._counts[line] += 1
        if self._counts[line] == _SHOWN:
            record.msg, record.args = f"{record.getMessage()} (further ones are not shown)", ()
        return self._counts[line] <= _SHOWN

    @contextmanager
    def on_handlers(self) -> Iterator[None]:
        """Filter all warnings that are shown; their loggers may belong to a user's scorer."""
        handlers = [h for h in (*logging.root.handlers, logging.lastResort) if h is not None]
        for handler in handlers:
            handler.addFilter(self)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self)
