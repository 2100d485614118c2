"""Command line of the package: `ctrlreward COMMAND ...`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from importlib.metadata import version

# Both libraries read these when they are imported. They keep warnings out of a run's log.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Each command is a module with `run(arguments)`, which is imported only when it is used.
COMMANDS = {
    "train": ("jobs.train", "run a training job from a YAML file"),
    "recipes": ("jobs.recipes", "list, print and copy the training recipes"),
    "score": ("corpus.score", "score the texts of a JSONL, CSV or Parquet file"),
    "serve": ("serving.serve", "serve a reward to trainers over HTTP"),
    "rescore": ("runs.rescoring_job", "score a run's stored texts with another reward"),
    "probe": ("probing.probe", "find out how a reward can be gamed, before training"),
    "compare": ("runs.compare", "find out which of two systems is better"),
    "select": ("runs.select", "select the checkpoint of a run, from any trainer's logs"),
    "report": ("runs.report", "write what happened in a run as an HTML page"),
    "meta-eval": ("ratings.command", "measure how well scores agree with human ratings"),
    "doctor": ("command_line.doctor", "print versions, devices and missing extras"),
}

EXAMPLES = (
    "ctrlreward score systems.csv scored.csv --by system --scorers Perplexity Distinct",
    "ctrlreward compare scored.csv --by system",
    "ctrlreward meta-eval rated rated.jsonl --ratings fluency --scorers Perplexity",
)

USAGE = "\n".join(
    [
        "usage: ctrlreward COMMAND ...",
        "",
        "commands:",
        *(f"  {name:<14}{purpose}" for name, (_, purpose) in COMMANDS.items()),
        "",
        "examples:",
        *(f"  {example}" for example in EXAMPLES),
        "",
        "Run 'ctrlreward COMMAND --help' to see the options and examples of a command.",
    ]
)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; dashes in the names of its options count as underscores."""
    command, *options = (sys.argv[1:] if arguments is None else arguments) or [""]
    if command == "help" and options:
        command, options = options[0], ["--help"]
    name = command.replace("_", "-")
    underscored = lambda option: "--" + option[0][2:].replace("-", "_")  # noqa: E731
    try:
        if name in COMMANDS:
            module = importlib.import_module(f"ctrlreward.{COMMANDS[name][0]}")
            module.run([re.sub("^--[^=]*", underscored, option) for option in options])
        elif name in ("help", "-h", "--help"):
            print(USAGE)
        elif name == "--version":
            print(f"ctrlreward {version('ctrlreward')}")
        else:
            error = f"\n\nerror: No such command: {command!r}" if command else ""
            print(f"{USAGE}{error}", file=sys.stderr)
            raise SystemExit(2)
        print(end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(141) from None  # as a shell's: 128 + SIGPIPE


if __name__ == "__main__":
    main()
