"""Command `ctrlreward score`: scores for a file of texts."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.command_line.config_files import read_config
from ctrlreward.command_line.parser import (
    FILES,
    SCORERS_HINT,
    command_parser,
    gather_words,
    import_scorers,
)
from ctrlreward.command_line.reward_file import scorer_classes
from ctrlreward.command_line.terminal import (
    direction_arrow,
    number_table,
    plain_console,
    printable,
    user_errors,
)
from ctrlreward.failures import rows_named
from ctrlreward.files import JsonLog, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.models.identity import identified, sha256_of
from ctrlreward.samples import JSON_KEYS, Samples
from ctrlreward.scorers import Component, Scorer
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import samples_log, score_parts
from ctrlreward.tables.columns import (
    Columns,
    explained_columns,
    read_columns,
    require_column,
    to_samples,
)
from ctrlreward.tables.rows import (
    check_suffix,
    encode_rows,
    parquet_types,
    read_placed,
)

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


def run(arguments: list[str]) -> None:
    """Score a file, or resume an interrupted run."""
    with user_errors():
        arguments = gather_words(arguments, _LISTS)
        # Mistakes are told before torch is imported, which takes seconds.
        tables = [Path(word) for word in arguments if word.endswith(FILES) and word[0] != "-"]
        if len(tables) == 2:
            for path in tables:
                check_suffix(path)
            if ":/" not in str(tables[0]):
                tables[0].stat()
        for i, word in enumerate(arguments):
            option, equals, file = word.partition("=")
            file = file if equals else "".join(arguments[i + 1 : i + 2])
            if option == "--config" and file and "components" in read_config(file):
                scorers = json.dumps(scorer_classes(file))
                arguments[i : i + 2 - len(equals)] = [f"--scorers={scorers}"]
        if any(word.startswith(("--scorers", "--config")) for word in arguments):
            import_scorers(arguments)
    description = f"{_DESCRIPTION}\n\n{SCORERS_HINT}"
    parser = command_parser("ctrlreward score", _USAGE, description, _EXAMPLES)
    help_config = "YAML file with options, or with the components of a reward, as the presets are"
    parser.add_argument("--config", action="config", help=help_config)
    parser.add_function_arguments(score_file, as_group=False, as_positional=True, skip={"identity"})
    config = parser.parse_args(arguments)
    identity = json.loads(parser.dump(config, format="json"))["scorers"]  # functions by their paths
    with user_errors(lambda: Path(f"{config.output}.partial.jsonl").exists()):
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
    by: str | None = None,
    label_map: list[str] | None = None,
    shard: str | None = None,
    identity: Any = None,
) -> None:
    """Score the texts of a file and print a summary.

    Args:
        input: The texts: a .jsonl, .csv or .parquet file, by path or by URL
            (`s3://bucket/texts.jsonl`).
        output: File for the input's columns and the scores, .jsonl, .csv or .parquet. It appears
            when it is complete; until then, the scores so far are in OUTPUT.partial.jsonl. With
            the same settings an existing output stays; with others it is an error.
        scorers: One or more scorers, each followed by its options: `--scorers CTRLEval Perplexity`,
            `--scorers CTRLEval --scorers.task=topic --scorers Perplexity`, or a list in the YAML
            file.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`):
            `--names small large`. Needed if two scorers have scores of the same name.
        columns: Column names of the input file; null ignores a column (`--columns.prefix=null`).
        by: Column of the system that wrote each text: the summary is by system, and scores that
            compare texts with each other, such as Distinct, compare the texts of one system.
        label_map: Labels of the file and their replacements: `--label-map
            0=negative 1=positive`.
        shard: `2/4` scores the second quarter of the rows, for several processes.
        identity: Configuration of the scorers, which a resumed run must share.
    """
    if "://" in output:
        raise ValueError(f"output must be a path of this machine, got {output!r}")
    target = Path(output)
    check_suffix(target)
    if target.exists() and Path(input).exists() and target.samefile(input):
        raise ValueError(f"{target} is the input. Choose another file for the scores.")
    rows, places = read_placed(input, shard)
    if by:
        require_column(rows, by)
    samples = to_samples(rows, columns, places, _replacements(label_map))
    present = list(rows[0])
    read = read_columns(columns, present)
    with explained_columns(present), rows_named(places, read):
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
    kept = target.suffix == ".parquet" and input.endswith(".parquet")
    types = parquet_types(input) if kept else {}
    if target.suffix == ".parquet":
        encode_rows(target.suffix, rows, {}, types)  # raises, before anything is scored
    # What scores of a corpus read beside the scores.
    scored = dict(components)
    for component in components.values():
        for name in component.scorer.corpus_columns:
            if Component(component.scorer, name) not in scored.values():
                scored[f"corpus/{len(scored)}/{name}"] = Component(component.scorer, name)
    path = Path(f"{output}.partial.jsonl")
    settings = {
        "by": by,
        "columns": asdict(columns),
        "label_map": label_map,
        "scorers": identified(identity),
    }
    log = samples_log(path, scored, rows, settings)
    systems = [str(row.get(by)) for row in rows] if by else [""] * len(rows)
    seal = target.with_name(f".{target.name}.settings")  # a digest of them and of the output
    if target.exists():
        if not seal.is_file() or seal.read_text() != _seal(log, target.read_bytes()):
            raise ValueError(f"{output} exists. Delete it, or choose another output.")
        path.unlink(missing_ok=True)
        print(printable(f"{output} is already complete. Delete it to score {input} again."))
        return
    if "outputs" in read:
        print(printable(_joined_line(read, samples)))
    for line in _left_out(scorers, components, samples):
        print(printable(line))
    if compared and not by:
        print(printable(f"computed over all texts, or by system with --by: {', '.join(compared)}"))
    with rows_named(places, read):
        scores = score_parts(scored, samples, log, places, systems)
    added = {name: scores[name] for name in components}
    content = encode_rows(target.suffix, rows, added, types)
    write_whole(seal, _seal(log, content))
    write_whole(target, content)
    path.unlink(missing_ok=True)
    _print_summary(components, scored, scores, np.array(systems))
    two = [*dict.fromkeys(systems)]
    if by and len(two) > 1:
        command = ["ctrlreward", "compare", str(output), "--by", by]
        command += ["--systems", *two[:2]] if len(two) > 2 else []
        item = read.get("prompts") or read.get("prefixes")
        command += ["--id", item] if item not in (None, "prompt", "prefix") else []
        print(printable(f"Which is better: {shlex.join(command)}"))


def _seal(log: JsonLog, content: bytes) -> str:
    return sha256_of([log.identity, hashlib.sha256(content).hexdigest()])


def _replacements(label_map: Sequence[str] | None) -> dict[str, str]:
    """Return label → replacement of pairs `OLD=NEW`."""
    labels = {}
    for pair in label_map or ():
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise ValueError(f"label_map must be OLD=NEW, such as 0=negative, got {pair!r}")
        labels[old] = new
    return labels


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


def _left_out(
    scorers: Sequence[Scorer], components: Mapping[str, Component], samples: Samples
) -> Iterator[str]:
    """Yield a line for each score that is not computed, for want of its columns."""
    computed = components.values()
    for component in (scorer[name] for scorer in scorers for name in scorer.specs):
        if component not in computed:
            needed = component.scorer.required_columns([component.name])
            missing = [JSON_KEYS[c] for c in needed if getattr(samples, c) is None]
            yield f"{component.name} is left out: it needs {', '.join(missing)}"


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
        label = f"{name} {direction_arrow(component.spec)}"
        for system in dict.fromkeys(systems.tolist()):
            values = scores[name][systems == system]
            read = {column: scores[n][systems == system] for n, column in own.items()}
            of_corpus = component.scorer.corpus_of(read).get(component.name, np.nan)
            means = [f"{v:.4f}".replace("nan", "–") for v in (valid_mean(values), of_corpus)]
            failed = str(int(np.isnan(values).sum()))
            lines.append([label, system, *means, str(len(values)), failed])
    headings = ["score", "system", "mean", "corpus", "rows", "failed"]
    # A file of one system has no names of systems, and few scores have one of the corpus.
    hidden = [i for i, empty in ((1, ""), (3, "–")) if all(line[i] == empty for line in lines)]
    names = [heading for i, heading in enumerate(headings[:2]) if i not in hidden]
    numbers = [heading for i, heading in enumerate(headings) if i > 1 and i not in hidden]
    table = number_table(names, numbers)
    for line in lines:
        table.add_row(*(cell for i, cell in enumerate(line) if i not in hidden))
    plain_console().print("Means (↑ higher is better, ↓ lower is better)", table)
