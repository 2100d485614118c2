"""Command `ctrlreward score`: scores for a file of texts."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ctrlreward.commands.chunked_scoring import ScoreLog, output_lock, score_in_chunks
from ctrlreward.commands.command_parser import command_parser, gather_words, known_scorers
from ctrlreward.commands.formats.parsing import read_bytes
from ctrlreward.commands.formats.tables import (
    Columns,
    Row,
    check_suffix,
    encode_rows,
    explained_columns,
    parse_rows,
    read_rows,
    to_samples,
)
from ctrlreward.commands.terminal import direction_arrow, plain_console, user_errors
from ctrlreward.files import write_whole
from ctrlreward.scorers import Component, Scorer
from ctrlreward.scorers.base import Scores, check_columns

_DESCRIPTION = """Score the texts of a JSONL, CSV or Parquet file.

Repeat the command to resume an interrupted run."""

_EXAMPLES = (
    "ctrlreward score texts.jsonl scored.csv --scorers CTRLEval Perplexity",
    "ctrlreward score texts.csv scored.csv --columns.text=output --scorers Perplexity",
    "ctrlreward score texts.jsonl topic.jsonl --scorers CTRLEval --scorers.task=topic "
    "--columns.label=topic",
)

# Options of scorers that may change when a run is resumed: they don't change the scores.
_NOT_IDENTITY = ("device", "batch_tokens")


def run(arguments: list[str]) -> None:
    """Score a file, or resume an interrupted run.

    Raises:
        SystemExit: With status 2 after an error of the user, 130 after an interruption.
    """
    usage = "INPUT OUTPUT --scorers NAME [NAME ...] [options]"
    parser = command_parser("ctrlreward score", usage, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip={"identity"})
    config = parser.parse_args(gather_words(arguments, {"--scorers", "--names"}))
    identity = _identity(config.as_dict()["scorers"])
    with user_errors(parser):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        try:
            score_file(**options, identity=identity)
        except KeyboardInterrupt:
            print("interrupted: repeat the command to resume", file=sys.stderr)
            raise SystemExit(130) from None


def score_file(
    input: Path,
    output: Path,
    *,
    scorers: list[Scorer],
    names: list[str] | None = None,
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    chunk: int = 256,
    identity: Any = None,
) -> None:
    """Score the texts of a file and print a summary.

    Args:
        input: The texts: a .jsonl, .csv or .parquet file.
        output: File for the input's columns and the scores: .jsonl, .csv or .parquet. Until it is
            complete, scores are kept in OUTPUT.partial.jsonl.
        scorers: One or more scorers, each followed by its options: `--scorers CTRLEval Perplexity`,
            `--scorers CTRLEval --scorers.task=topic --scorers Perplexity`, or a list in the YAML
            file.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`):
            `--names small large`. Needed where two scorers have scores of the same name.
        columns: Column names of the input file; null ignores a column (`--columns.prefix=null`).
        chunk: Rows to score before their scores are saved.
        identity: Configuration of the scorers, which a resumed run must share.

    Raises:
        ValueError: Two scores, or a score and a column of the input, have the same name; the run
            can't be resumed because the input, the columns or the scorers have changed; the output
            exists and does not belong to this input; or another process is writing it.
    """
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: give a positive number of rows")
    _check_files(input, output)
    components = name_components(scorers, names)
    content = read_bytes(input)
    rows = parse_rows(content, input)
    samples = to_samples(rows, columns)
    _refuse_score_columns(input, rows, components)
    with explained_columns(rows):
        check_columns(components, samples)
    carried = encode_rows(output.suffix, rows, {})  # raises before scoring, not after it
    partial = output.with_name(f"{output.name}.partial.jsonl")
    with output_lock(output):
        if output.exists() and not partial.exists():
            _require_complete(output, parse_rows(carried, output), components)
            print(
                f"{output} is already complete: delete it to score {input} again. Changes of "
                "--columns or of the scorers' options are not detected"
            )
            return
        settings = {
            "version": version("ctrlreward"),  # another one may score differently
            "input": hashlib.sha256(content).hexdigest(),
            "columns": asdict(columns),
            "scorers": [identity, list(components)],
        }
        with explained_columns(rows):  # again, for scorers that do not declare what they need
            scores = score_in_chunks(components, samples, chunk, ScoreLog(partial, settings))
        write_whole(output, encode_rows(output.suffix, rows, scores))
        partial.unlink()
    plain_console().print(_means_table(scores, components))


def name_components(scorers: Sequence[Scorer], names: Sequence[str] | None) -> dict[str, Component]:
    """Return all scores of some scorers by name.

    Args:
        scorers: One or more.
        names: One per scorer, for keys such as `"small.coherence"`; None uses the scores' own
            names.

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
        for score in scorer.specs:
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


def _check_files(input: Path, output: Path) -> None:
    """Raise if the files are given in the wrong order, are one file, or can't be written.

    Raises:
        ValueError: See above; or the output has an unknown suffix.
        ImportError: The output is Parquet, and pyarrow is not installed.
    """
    if not input.exists() and output.is_file():
        raise ValueError(
            f"there is no file {input}: give the texts first, then the output, as in `ctrlreward "
            f"score {output} {input}`"
        )
    if output.is_dir():
        raise ValueError(f"{output} is a folder: give a file for the scores")
    if output.exists() and output.samefile(input):
        raise ValueError(f"{output} is the input: give another file for the scores")
    check_suffix(output)


def _refuse_score_columns(
    path: Path, rows: Sequence[Row], components: Mapping[str, Component]
) -> None:
    """Raise if a column of the input has the name of a score."""
    clashing = [name for name in components if any(name in row for row in rows)]
    if clashing:
        raise ValueError(
            f"{path} already has columns with the names of scores ({', '.join(clashing)}): give "
            "--names, one per scorer, to prefix the names of their scores. If this is the output, "
            "give it after the texts"
        )


def _require_complete(
    output: Path, carried: Sequence[Row], components: Mapping[str, Component]
) -> None:
    """Raise if an existing output lacks scores or was made from another input.

    Args:
        output: The existing file.
        carried: Rows of the input as they would be read back from the output.
        components: The scores that the output must have.
    """
    existing = read_rows(output)
    lacking = [name for name in components if name not in existing[0]]
    problems = [f"no {name}" for name in lacking]
    if len(existing) != len(carried):
        problems.append(f"{len(existing)} rows instead of {len(carried)}")
    if problems:
        raise ValueError(
            f"{output} exists but is not a complete output of this command: it has "
            f"{', '.join(problems)}. Give another output, or delete it"
        )
    for i, (row, expected) in enumerate(zip(existing, carried, strict=True)):
        for name, value in expected.items():
            if repr(row.get(name)) != repr(value):  # repr, because NaN is not equal to itself
                raise ValueError(
                    f"{output} exists but was made from other rows: {name}[{i}] is "
                    f"{row.get(name)!r}, not {value!r}. Give another output, or delete it to "
                    "score again"
                )


def _means_table(scores: Mapping[str, Scores], components: Mapping[str, Component]) -> Table:
    """Return a table of each score's direction, mean and number of failed rows."""
    table = Table(title="Means (↑ higher is better, ↓ lower is better)")
    table.add_column("score")
    for heading in ("mean", "rows", "failed"):
        table.add_column(heading, justify="right")
    for name, values in scores.items():
        scored = values[~np.isnan(values)]
        mean = f"{scored.mean():.4f}" if len(scored) else "–"
        failed = len(values) - len(scored)
        label = f"{name} {direction_arrow(components[name].spec)}"
        table.add_row(label, mean, str(len(values)), str(failed))
    return table
