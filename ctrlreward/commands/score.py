"""`ctrlreward score`: scores the texts of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

import ctrlreward.scorers  # so that scorers are known by their short names
from ctrlreward.commands.chunked_scoring import ScoreLog, alone, score_in_chunks, summary
from ctrlreward.commands.formats.tables import (
    Columns,
    Record,
    check_suffix,
    encode,
    parse_records,
    read_records,
    to_samples,
)
from ctrlreward.commands.terminal import plain_console, user_errors
from ctrlreward.files import write_whole
from ctrlreward.scorers import Component, Scorer

# Where, in what portions and how a scorer runs may change between a run and its continuation.
_NOT_IDENTITY = ("device", "batch_tokens")


def run(arguments: list[str]) -> None:
    """Scores a file, or goes on with one that was cut off."""
    parser = ArgumentParser(
        prog="ctrlreward score",
        parser_mode="yaml",
        description="Scores the texts of a JSONL, CSV or Parquet file. A run that was cut off goes "
        "on where it stopped when the same command is given again.",
    )
    parser.add_argument("--config", action="config", help="options as a YAML file")
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip={"identity"})
    config = parser.parse_args(arguments)
    identity = _identity(config.as_dict()["scorers"])
    with user_errors(parser):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        score_file(**options, identity=identity)


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
    """Scores the texts of a file.

    Args:
        input: A file that ends in .jsonl, .csv or .parquet; its columns are carried through.
        output: The same with scores, .jsonl, .csv or .parquet. What is scored until then lies in
            OUTPUT.partial.jsonl.
        scorers: What to score, by class and options: `--scorers+=CTRLEval --scorers.task=topic
            --scorers+=Perplexity`, or as a list in the YAML file.
        names: A name for each scorer, put before those of its scores with a dot: for two scorers
            whose scores have the same names.
        columns: Which column of the file holds what.
        chunk: Rows that are scored, and stored, at a time.
        identity: What the scorers are, for a run that goes on.

    Raises:
        ValueError: Two scores, or a score and a column of the input, have the same name; or a run
            can't go on because input, columns or scorers have changed; or the output is there and
            is not that of this input; or another process is writing it.
    """
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: give a positive number of rows")
    check_suffix(output)
    components = name_components(scorers, names)
    content = input.read_bytes()
    records = parse_records(content, input)
    samples = to_samples(records, columns)
    taken = [name for name in components if any(name in record for record in records)]
    if taken:
        raise ValueError(
            f"{input} has columns that are named like scores, {', '.join(taken)}: give the scorers "
            "--names, one each, which are put before the names of their scores"
        )
    carried = encode(output.suffix, records, {})  # what can't be stored fails before it is scored
    partial = output.with_name(f"{output.name}.partial.jsonl")
    with alone(output):
        if output.exists() and not partial.exists():
            _require_finished(output, parse_records(carried, output), components)
            print(
                f"{output} is finished: delete it to score {input} again, as with other --columns "
                "or other options of the scorers, which are not compared"
            )
            return
        run = {
            "input": hashlib.sha256(content).hexdigest(),
            "columns": asdict(columns),
            "scorers": [identity, list(components)],
        }
        scores = score_in_chunks(components, samples, chunk, ScoreLog(partial, run))
        write_whole(output, encode(output.suffix, records, scores))
        partial.unlink()
    specs = {name: component.spec for name, component in components.items()}
    plain_console().print(summary(scores, specs))


def name_components(scorers: Sequence[Scorer], names: Sequence[str] | None) -> dict[str, Component]:
    """All scores of the scorers by their names, or by `scorer's name.score's name`.

    Raises:
        ValueError: There is no scorer, not one name each, or two scores have the same name.
    """
    if not scorers:
        raise ValueError(f"scorers is empty: give some of {', '.join(_known_scorers())}")
    if names is not None and (len(names) != len(scorers) or len(set(names)) != len(names)):
        raise ValueError(
            f"names = {list(names)} for {len(scorers)} scorers: give each one of its own"
        )
    components: dict[str, Component] = {}
    for place, scorer in enumerate(scorers):
        for score in scorer.specs:
            name = f"{names[place]}.{score}" if names else score
            if name in components:
                raise ValueError(
                    f"two scorers have a score {name!r}: give them --names, one each, which are "
                    "put before the names of their scores"
                )
            components[name] = scorer[score]
    return components


def _known_scorers() -> list[str]:
    members = vars(ctrlreward.scorers).items()
    return [n for n, m in members if isinstance(m, type) and issubclass(m, Scorer) and m != Scorer]


def _identity(configuration: Any) -> Any:
    """A configuration without what does not change the scores."""
    if isinstance(configuration, dict):
        return {k: _identity(v) for k, v in configuration.items() if k not in _NOT_IDENTITY}
    if isinstance(configuration, list | tuple):
        return [_identity(item) for item in configuration]
    return configuration if isinstance(configuration, int | float | None) else str(configuration)


def _require_finished(
    output: Path, carried: list[Record], components: dict[str, Component]
) -> None:
    """Raises where a file has not the scores, or not the columns that the input would give it."""
    found = read_records(output)
    lacking = [name for name in components if name not in found[0]]
    if lacking or len(found) != len(carried):
        raise ValueError(
            f"{output} exists and is no finished output of this command: it has {len(found)} "
            f"rows for {len(carried)} and lacks {', '.join(lacking) or 'no score'}. Name another "
            "file, or delete it"
        )
    for place, (row, wanted) in enumerate(zip(found, carried, strict=True)):
        for name, value in wanted.items():
            if repr(row.get(name)) != repr(value):  # as text, in which NaN is like NaN
                raise ValueError(
                    f"{output} exists and was made from other rows: {name}[{place}] is "
                    f"{row.get(name)!r} in it, and would be {value!r}. Name another file, or "
                    "delete it to score anew"
                )
