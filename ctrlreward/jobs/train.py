"""Command `ctrlreward train`: a training job from a YAML file."""

from __future__ import annotations

import sys
from pathlib import Path

from ctrlreward.command_line.config_files import with_extended
from ctrlreward.command_line.terminal import plain_parser
from ctrlreward.jobs.recipes import EXAMPLE, recipe_files

COMMAND = "ctrlreward train"
DESCRIPTION = f"""Run a training job from a YAML file, such as those in
{EXAMPLE.parent.parent}.

Every key of the file is also an option, and so is what it has under values, as YAML; --ckpt_path
last resumes the last run; --smoke tries all parts in two steps with the sizes under smoke, in a
temporary folder. 'ctrlreward train CONFIG --help' lists the options of a file's classes and of
Lightning's Trainer."""
EXAMPLES = [f"{COMMAND} {EXAMPLE} --trainer.max_steps=10", f"{COMMAND} {EXAMPLE} --smoke"]


def run(arguments: list[str]) -> None:
    """Run a training job; a help without a file, and a file that is absent, need no PyTorch."""
    if arguments in (["--help"], ["-h"]):
        parser = plain_parser(COMMAND, DESCRIPTION, EXAMPLES)
        parser.add_argument("config", metavar="CONFIG", help="YAML file; others by --config")
        parser.parse_args(arguments)
    try:
        if not arguments:
            raise ValueError(f"the configuration is missing: {COMMAND} {EXAMPLE}")
        options = with_extended(arguments)  # before PyTorch is imported, which takes longer
    except (ValueError, OSError) as error:
        name = Path(str(error).removeprefix("No such file: ")).stem
        is_recipe = isinstance(error, OSError) and name in recipe_files()
        copy = f" (ctrlreward recipes copy {name} FOLDER)" if is_recipe else ""
        print(f"error: {error}{copy}", file=sys.stderr)
        raise SystemExit(2) from None
    from ctrlreward.jobs.training_job import run_job

    run_job(options)
