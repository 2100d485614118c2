"""The command line: `ctrlreward COMMAND ...`."""

from __future__ import annotations

import importlib
import os
import sys

# Read once, at the import of these libraries: a run's log is for what the run does.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Each command is a module with `run(arguments)`, imported only when it is asked for.
COMMANDS = {
    "train": "runs a training job: train --config FILE [--ckpt_path last]",
    "score": "scores the texts of a JSONL or CSV file",
    "meta-eval": "says how well scores agree with human ratings",
    "compare": "says how well two runs agree (QRA++)",
    "iwf": "counts a corpus into a table of inverse word frequencies",
}

USAGE = "\n".join(
    [
        "usage: ctrlreward COMMAND ...",
        "",
        "commands:",
        *(f"  {name:<11}{what}" for name, what in COMMANDS.items()),
        "",
        "ctrlreward COMMAND --help lists a command's options.",
    ]
)


def main(arguments: list[str] | None = None) -> None:
    """The entry point; `arguments` without the program's name."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
    elif arguments and arguments[0] in COMMANDS:
        command, *options = arguments
        module = importlib.import_module(f"ctrlreward.commands.{command.replace('-', '_')}")
        module.run(options if command == "train" else [_spelled(option) for option in options])
    else:
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)


def _spelled(argument: str) -> str:
    """An option as it is defined, whether with dashes or with underscores; its value as it is."""
    option, equals, value = argument.partition("=")
    if not option.startswith("--"):
        return argument
    return "--" + option[2:].replace("-", "_") + equals + value
