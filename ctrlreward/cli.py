"""Command line of the package: `ctrlreward COMMAND ...`."""

from __future__ import annotations

import importlib
import os
import sys

# Both libraries read these when they are imported. They keep warnings out of a run's log.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Each command is a module with `run(arguments)`, which is imported only when it is used.
COMMANDS = {
    "train": "run a training job: train --config FILE [--ckpt_path last]",
    "score": "score the texts of a JSONL, CSV or Parquet file",
    "meta-eval": "measure how well scores agree with human ratings",
    "compare": "measure how well two runs agree (QRA++)",
    "iwf": "compute inverse word frequencies from a corpus",
}

USAGE = "\n".join(
    [
        "usage: ctrlreward COMMAND ...",
        "",
        "commands:",
        *(f"  {name:<11}{description}" for name, description in COMMANDS.items()),
        "",
        "Run 'ctrlreward COMMAND --help' to see the options of a command.",
    ]
)


def main(arguments: list[str] | None = None) -> None:
    """Run a command.

    Args:
        arguments: The command and its options; None takes them from `sys.argv`.

    Raises:
        SystemExit: With status 2 after an unknown command or a wrong option.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
    elif arguments and arguments[0] in COMMANDS:
        command, *options = arguments
        module = importlib.import_module(f"ctrlreward.commands.{command.replace('-', '_')}")
        module.run(options if command == "train" else [_underscored(o) for o in options])
    else:
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)


def _underscored(argument: str) -> str:
    """Replace dashes in an option's name by underscores, and leave its value as it is."""
    option, equals, value = argument.partition("=")
    if not option.startswith("--"):
        return argument
    return "--" + option[2:].replace("-", "_") + equals + value
