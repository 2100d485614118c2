"""Command `ctrlreward score`: scores for a file of texts.

Arguments are checked as far as possible before PyTorch is imported, which takes many
times as long.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence

from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.terminal import printable
from ctrlreward.command_line.typed_options import SCORERS, SCORERS_HINT, gather_words
from ctrlreward.samples import COLUMN_OF, JSON_KEYS
from ctrlreward.tables.locations import STANDARD, Location
from ctrlreward.tables.row_streams import open_rows

_DESCRIPTION = """Score the texts of a JSONL, CSV or Parquet file, or of a folder of them.

Repeat the command to resume an interrupted run."""

_EXAMPLES = (
    "ctrlreward score texts.jsonl scored.csv --scorers CTRLEval Perplexity",
    "ctrlreward score texts.csv scored.csv --columns.text=output --scorers Perplexity",
    "ctrlreward score texts.jsonl topic.jsonl --scorers CTRLEval --scorers.task=topic "
    "--columns.label=topic",
    "ctrlreward score corpus/ scored/ --scorers Perplexity --workers 2 --chunk 10000",
)

_USAGE = "INPUT OUTPUT --scorers NAME [NAME ...] [options]"

# Options that take lists of words; all others take one.
LISTS = {"--scorers", "--names", "--label_map"}

# Options of the command.
OPTIONS = (
    *("scorers", "names", "columns", "label_map", "chunk", "workers", "threads", "engine", "ray"),
)


def run(arguments: list[str]) -> None:
    """Score a file, or resume an interrupted run."""
    arguments = gather_words([_singular(argument) for argument in arguments], LISTS)
    try:
        _check(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"usage: ctrlreward score {_USAGE}\nerror: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    from ctrlreward.corpus.scoring_job import run_job

    run_job(arguments, _USAGE, _DESCRIPTION, _EXAMPLES)


def _singular(argument: str) -> str:
    """Return `--columns.labels` as `--columns.label`."""
    option, equals, value = argument.partition("=")
    name = option.removeprefix("--columns.")
    if option != name and name in JSON_KEYS:
        return f"--columns.{JSON_KEYS[name]}{equals}{value}"
    return argument


def _check(arguments: Sequence[str]) -> None:
    """Check arguments without PyTorch, unless there is a YAML file or help is requested."""
    files: list[str] = []
    scorers: list[str] | None = None
    rest = deque(arguments)
    while rest:
        option, equals, value = rest.popleft().partition("=")
        if not option.startswith("--"):
            files.append(option + equals + value)
            continue
        name, *inner = option[2:].rstrip("+").split(".")
        if name in ("", "config", "help", "print_config", "input", "output") or "help" in inner:
            return  # the parser reads them, or reports them
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS, "--{}".format)
            hint = hint or f"; an option of a scorer is --scorers.{name}, after its name"
            if name in COLUMN_OF:
                key = JSON_KEYS[COLUMN_OF[name]]
                hint = f"; each row has its {key}: name their column with --columns.{key}=COLUMN"
            raise ValueError(f"No such option: {option}{hint}")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.popleft()
        if name == "scorers" and not inner:
            words = [] if "{" in value else value.strip("[]").split(",")
            scorers = [*(scorers or ()), *filter(None, (word.strip('" ') for word in words))]
    if "-h" in files:
        return
    required = {"input": files[:1], "output": files[1:2], "scorers": scorers is not None}
    missing = [name for name, there in required.items() if not there]
    if missing:
        hint = f"\n{SCORERS_HINT}" if scorers is None else ""
        raise ValueError(f"the following arguments are required: {', '.join(missing)}{hint}")
    for scorer in scorers or ():
        if "." not in scorer and scorer not in SCORERS:
            hint = did_you_mean(scorer, SCORERS, str)
            raise ValueError(f"No such scorer: {scorer}{hint}\n{SCORERS_HINT}")
    if STANDARD not in files and not any("://" in file for file in files):
        open_rows(*map(Location, files[:2]))
