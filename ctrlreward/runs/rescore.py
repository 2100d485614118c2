"""Command `ctrlreward rescore`: another reward for the stored texts of a run.

Arguments are checked as far as possible before PyTorch is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.terminal import printable

_DESCRIPTION = """Score the stored texts of all validations with another reward or judge, and
replay the decisions.

The file is the `reward:` block of a recipe, or a whole recipe. Selects by default by the key that
selected in the run and by each new score, under the constraints of the run. Repeat the command to
resume an interrupted one, or to score the new validations of a running job."""

_EXAMPLES = (
    "ctrlreward rescore runs/demo judge.yaml",
    "ctrlreward rescore runs/demo judge.yaml --maximise score/fluency "
    "--subject-to 'score/distinct_2>=0.86' --guard reward/total:score/fluency --stop patience=2",
)

_USAGE = "RUN REWARD [options]"

OPTIONS = (
    *("maximise", "maximize", "minimise", "minimize", "subject_to", "guard", "reference"),
    *("stop", "pareto", "ties_by", "constraint_test", "level"),
    *("names", "device", "output", "json", "format", "help"),
)


def run(arguments: list[str]) -> None:
    """Score, or resume, and print the replayed decisions."""
    try:
        _check(arguments)
    except (ValueError, OSError) as error:
        print(
            f"usage: ctrlreward rescore {_USAGE}\nerror: {printable(str(error))}", file=sys.stderr
        )
        raise SystemExit(2) from None
    from ctrlreward.runs.rescoring_job import run_job

    run_job(arguments, _USAGE, _DESCRIPTION, _EXAMPLES)


def _check(arguments: list[str]) -> None:
    """Check the names of options, and both files, before PyTorch is imported."""
    files: list[str] = []
    leading = True
    for argument in arguments:
        if argument == "-h" or argument.startswith("--help"):
            return
        if argument.startswith("--"):
            name = argument[2:].partition("=")[0]
            leading = False
            if name not in OPTIONS:
                hint = did_you_mean(name, OPTIONS, "--{}".format)
                raise ValueError(f"--{name} is not an option{hint}")
        elif leading or Path(argument).suffix in (".yaml", ".yml"):
            files.append(argument)
    if len(files) < 2:
        raise ValueError("the following arguments are required: RUN and REWARD, a YAML file")
    if "://" not in files[0] and not Path(files[0]).exists():
        raise OSError(f"No such folder: {files[0]}")
    read_reward(Path(files[1]))
