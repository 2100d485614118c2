"""Command `ctrlreward score`: scores for a file of texts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.parser import CommandParser, command_parser, import_scorers
from ctrlreward.command_line.terminal import (
    direction_arrow,
    number_table,
    plain_console,
    user_errors,
)
from ctrlreward.command_line.typed_options import SCORERS, SCORERS_HINT, gather_words, pairs
from ctrlreward.failures import rows_named
from ctrlreward.files import JsonLog, hold, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.samples import Samples
from ctrlreward.scorers import Component, Scorer
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import score_parts
from ctrlreward.tables.row_streams import Row, check_suffix, parse_table, read_placed, read_rows
from ctrlreward.tables.table_columns import (
    Columns,
    explained_columns,
    read_columns,
    require_column,
    to_samples,
)
from ctrlreward.tables.table_writing import encode_rows

_DESCRIPTION = """Score the texts of a JSONL, CSV or Parquet file.

Repeat the command to resume an interrupted run."""

_EXAMPLES = (
    "ctrlreward score texts.jsonl scored.csv --scorers CTRLEval Perplexity",
    "ctrlreward score systems.csv scored.csv --by system --columns.prompt=prompt "
    "--columns.output=output --scorers Perplexity Distinct",
    "ctrlreward score texts.jsonl topic.jsonl --scorers CTRLEval --scorers.task=topic "
    "--columns.label=topic",
    "ctrlreward score texts.jsonl scored-1.jsonl --shard 1/2 --scorers Perplexity",
)

_USAGE = "INPUT OUTPUT --scorers NAME [NAME ...] [options]"

# Options that take lists of words; all others take one.
_LISTS = {"--scorers", "--names", "--label_map"}

# Rows of a file, the place of each, and their samples.
Texts: TypeAlias = tuple[list[Row], list[str], Samples]

# Options of scorers that may change when a run is resumed: they don't change the scores.
_NOT_IDENTITY = ("device", "batch_tokens")


def run(arguments: list[str]) -> None:
    """Score a file, or resume an interrupted run."""
    arguments = gather_words(arguments, _LISTS)
    options = {argument.partition("=")[0].removesuffix("+") for argument in arguments}
    texts = None
    if arguments and not options & {"-h", "--help", "--config", "--scorers.help"}:
        with user_errors():
            texts = _check_all_but_scorers(arguments)
            if "--scorers" not in options:
                raise ValueError(f"--scorers is missing. {SCORERS_HINT}")
    if options & {"--scorers", "--config", "--scorers.help"}:
        import_scorers()  # with torch, which takes seconds
    parser = _parser({"identity", "texts"})
    config = parser.parse_args(arguments)
    identity = json.loads(
        parser.dump(config, format="json"),  # functions by their paths
        object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in _NOT_IDENTITY},
    )["scorers"]
    with user_errors(lambda: _log_path(Path(config.output)).exists()):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        score_file(**options, identity=identity, texts=texts)


def _parser(skip: set[str | int]) -> CommandParser:
    description = f"{_DESCRIPTION}\n\n{SCORERS_HINT}"
    parser = command_parser("ctrlreward score", _USAGE, description, _EXAMPLES)
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip=skip)
    return parser


def _check_all_but_scorers(arguments: Sequence[str]) -> Texts | None:
    """Raise for a wrong option, file or column before torch is imported; return the local texts."""
    rest = iter(arguments)
    others = []
    for argument in rest:
        if not argument.startswith("--scorers"):
            others.append(argument)
        elif "=" not in argument:
            next(rest, None)  # its value
        elif "{" not in argument and re.match(r"--scorers\+?=", argument):
            for name in re.findall(r'"(\w+)"', argument):
                if name not in SCORERS:
                    hint = did_you_mean(name, SCORERS)
                    raise ValueError(f"there is no scorer {name!r}{hint}. {SCORERS_HINT}")
    parser = _parser({"identity", "texts", "scorers"})
    options = parser.instantiate(parser.parse_args(others))
    if "://" in options.input:
        return None
    columns, labels = options.columns, options.label_map
    return _texts(options.input, Path(options.output), columns, labels, options.shard, options.by)


def score_file(
    input: str,
    output: str,
    *,
    scorers: list[Scorer],
    names: list[str] | None = None,
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    by: str | None = None,
    label_map: list[str] | None = None,
    shard: str | None = None,
    identity: Any = None,
    texts: Texts | None = None,
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
        by: Column of the system that wrote each text: the summary is by system, and scores that
            compare texts with each other, such as those of Distinct, compare those of one system.
        label_map: Labels of the file and their replacements: `--label-map
            0=negative 1=positive`.
        shard: `2/4` scores the second quarter of the rows, for several processes.
        identity: Configuration of the scorers, which a resumed run must share.
        texts: The texts, if they were read.
    """
    target = Path(output)
    texts = texts or _texts(input, target, columns, label_map, shard, by)
    rows, places, samples = texts
    read = read_columns(columns, list(rows[0]))
    with explained_columns(list(rows[0])), rows_named(places, read):
        components = name_components(scorers, names, samples)
        check_samples(components, samples)
    if clashing := [name for name in components if any(name in row for row in rows)]:
        raise ValueError(
            f"{input} already has columns with the names of scores ({', '.join(clashing)}). "
            "Pass --names, one per scorer, to prefix the names of their scores."
        )
    compared = [name for name, c in components.items() if not c.scorer.pointwise]
    if shard and compared:
        raise ValueError(f"{', '.join(compared)} needs all rows, not a shard of them")
    systems = [str(row.get(by)) for row in rows] if by else [""] * len(rows)
    if target.suffix == ".parquet":
        encode_rows(target.suffix, rows, {})  # raises, before anything is scored
    scored = components | _read_by_corpora(components)
    settings = {
        "version": version("ctrlreward"),  # another one may score differently
        "sha256 of the rows": hashlib.sha256(repr(rows).encode(errors="replace")).hexdigest(),
        "columns": asdict(columns),
        "label_map": label_map,
        "scorers": [identity, list(scored)],
    }
    log = JsonLog(_log_path(target), settings)
    lock = target.with_name(f".{target.name}.lock")
    with hold(lock, output, "Wait for it, or use another output.", temporary=True):
        if target.exists() and not log.path.exists():
            _require_complete(target, rows, list(components))
            print(f"{output} is already complete. Delete it to score {input} again.")
            return
        if "outputs" in read:
            print(_joined_line(read, samples))
        with rows_named(places, read):
            scores = score_parts(scored, samples, log, places, systems)
        write_whole(
            target, encode_rows(target.suffix, rows, {name: scores[name] for name in components})
        )
        log.path.unlink(missing_ok=True)
    _print_summary(components, scored, scores, np.array(systems))
    if by:
        print(f"Which is better: ctrlreward compare {output} --by {by}")


def _log_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial.jsonl")


def _texts(
    input: str,
    target: Path,
    columns: Columns,
    label_map: Sequence[str] | None,
    shard: str | None,
    by: str | None,
) -> Texts:
    """Return the rows of a file, or of its shard `i/n`, the place of each, and their texts."""
    check_suffix(target)
    if target.exists() and Path(input).exists() and target.samefile(input):
        raise ValueError(f"{target} is the input. Choose another file for the scores.")
    rows, places = read_placed(input)
    match = re.fullmatch(r"(\d+)/(\d+)", shard or "1/1")
    i, n = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= i <= n <= len(rows):
        raise ValueError(
            f"shard must be from 1/n to n/n, such as 2/4, with n up to the number of rows, "
            f"{len(rows)}, got {shard!r}"
        )
    if by:
        require_column(rows, by)
    part = slice(len(rows) * (i - 1) // n, len(rows) * i // n)
    labels = pairs("label_map", "OLD=NEW, such as 0=negative", label_map) or None
    samples = to_samples(rows[part], columns, places[part], label_map=labels)
    return rows[part], places[part], samples


def _read_by_corpora(components: Mapping[str, Component]) -> dict[str, Component]:
    """Return what the scorers' scores of a corpus read beside the scores, by other names."""
    read = [Component(c.scorer, n) for c in components.values() for n in c.scorer.corpus_columns]
    known = set(components.values())
    return {
        f"corpus/{i}/{each.name}": each
        for i, each in enumerate(dict.fromkeys(read))
        if each not in known
    }


def _joined_line(read: Mapping[str, str], samples: Samples) -> str:
    """Return what the texts are, in words."""
    start = read.get("prefixes") or read.get("prompts")
    if samples.prefixes is None or start is None:
        why = "the prompts are conversations" if start else "the file has no column of prompts"
        return f"texts are the column {read['outputs']!r} alone: {why}"
    alone = f"--columns.text={read['outputs']} scores the outputs alone"
    return (
        f"texts are {start!r} and {read['outputs']!r}, with a space where neither has one; {alone}"
    )


def _require_complete(output: Path, rows: Sequence[Row], names: Sequence[str]) -> None:
    """Raise if an existing output lacks scores or was made from other rows."""
    table = parse_table(encode_rows(output.suffix, rows, {}), str(output))
    expected, found = [row for _, row in table], read_rows(output)
    lacks = [name for name in names if name not in found[0]]
    carried = [
        {name: row.get(name) for name in cells} for row, cells in zip(found, expected, strict=False)
    ]
    # repr, because NaN is not equal to itself
    if lacks or len(found) != len(expected) or repr(carried) != repr(expected):
        problem = f"has no {', '.join(lacks)}" if lacks else "was made from other rows"
        raise ValueError(f"{output} exists but {problem}. Use another output.")


def _print_summary(
    components: Mapping[str, Component],
    scored: Mapping[str, Component],
    scores: Mapping[str, Scores],
    systems: np.ndarray[Any, Any],
) -> None:
    """Print for each score and system the mean, the score of the corpus if any, and failed rows."""
    lines = []
    for name, component in components.items():
        own = {n: c.name for n, c in scored.items() if c.scorer is component.scorer}
        for system in dict.fromkeys(systems.tolist()):
            rows = systems == system
            values = scores[name][rows]
            corpus = component.scorer.corpus_of({c: scores[n][rows] for n, c in own.items()})
            figures = [f"{v:.4f}" for v in (valid_mean(values), corpus.get(component.name, np.nan))]
            failed = int(np.isnan(values).sum())
            label = f"{name} {direction_arrow(component.spec)}"
            lines.append([label, system, *figures, str(len(values)), str(failed)])
    headings = ["score", "system", "mean", "corpus", "rows", "failed"]
    shown = [
        i for i in range(6) if i in (0, 2, 4, 5) or any(r[i] not in ("", "nan") for r in lines)
    ]
    table = number_table(
        [headings[i] for i in shown if i < 2], [headings[i] for i in shown if i > 1]
    )
    for line in lines:
        table.add_row(*(line[i].replace("nan", "–") if i > 1 else line[i] for i in shown))
    plain_console().print("Means (↑ higher is better, ↓ lower is better)", table)
