"""Command `ctrlreward train`: a training job from a YAML file."""

from __future__ import annotations

import sys
from pathlib import Path

from ctrlreward.command_line.config_files import with_extended
from ctrlreward.jobs.recipes import EXAMPLE, recipe_files


def run(arguments: list[str]) -> None:
    """Run a training job."""
    arguments = _checked(arguments)
    from ctrlreward.jobs.training_job import run_job

    run_job(arguments)


def _checked(arguments: list[str]) -> list[str]:
    """Return the arguments with `--config`; a file that is absent exits with status 2."""
    try:
        if not arguments:
            raise ValueError(f"the configuration is missing: ctrlreward train {EXAMPLE}")
        if not arguments[0].startswith("-"):
            arguments = ["--config", *arguments]
        with_extended(arguments)  # before PyTorch is imported, which takes many times as long
    except (ValueError, OSError) as error:
        name = Path(str(error).removeprefix("No such file: ")).stem
        is_recipe = isinstance(error, OSError) and name in recipe_files()
        copy = f" (ctrlreward recipes copy {name} FOLDER)" if is_recipe else ""
        print(f"error: {error}{copy}", file=sys.stderr)
        raise SystemExit(2) from None
    return arguments
