"""`ctrlreward score`: scores the texts of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from rich.console import Console

import ctrlreward.scorers  # so that scorers are known by their short names
from ctrlreward.commands.scoring import ScoreLog, score_in_chunks, summary
from ctrlreward.commands.tables import (
    Columns,
    check_suffix,
    encode,
    read_records,
    to_samples,
    write_atomically,
)
from ctrlreward.scorers import Component, Scorer

# Where and in what portions a scorer runs may change between a run and its continuation.
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
    options = parser.instantiate(config).as_dict()
    options.pop("config")
    try:
        score_file(**options, identity=identity)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))


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
            can't go on because input or scorers have changed.
    """
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: give a positive number of rows")
    check_suffix(output)
    components = name_components(scorers, names)
    records = read_records(input)
    samples = to_samples(records, columns)
    taken = [name for name in components if any(name in record for record in records)]
    if taken:
        raise ValueError(
            f"{input} has columns that are named like scores, {', '.join(taken)}: give the scorers "
            "--names, one each, which are put before the names of their scores"
        )
    partial = output.with_name(f"{output.name}.partial.jsonl")
    if output.exists() and not partial.exists():
        _require_finished(output, len(records), components)
        print(f"{output} is finished: delete it to score {input} again")
        return
    encode(output.suffix, records, {})  # what can't be stored should fail before it is scored
    digest = hashlib.sha256(input.read_bytes()).hexdigest()
    log = ScoreLog(partial, {"input": digest, "scorers": [identity, list(components)]})
    scores = score_in_chunks(components, samples, chunk, log)
    write_atomically(output, encode(output.suffix, records, scores))
    partial.unlink()
    metrics = {name: component.metric for name, component in components.items()}
    Console().print(summary(scores, metrics))


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
        for score in scorer.metrics:
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


def _require_finished(output: Path, rows: int, components: dict[str, Component]) -> None:
    records = read_records(output)
    lacking = [name for name in components if name not in records[0]]
    if lacking or len(records) != rows:
        raise ValueError(
            f"{output} exists and is no finished output of this command: it has {len(records)} "
            f"rows for {rows} and lacks {', '.join(lacking) or 'no score'}. Name another file, or "
            "delete it"
        )
