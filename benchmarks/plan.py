"""Peak memory of recipes, as `ctrlreward plan` computes it and as measured.

    python benchmarks/plan.py [RECIPE ...] [--steps 2]

Each recipe trains a few steps in a process of its own, with its validations and its report; the
measured peak is the resident set of that process. Models that a recipe needs have to be in `runs/`
of the current folder. Recipes without them are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ctrlreward.commands.recipes import recipe_file

MIB = 2**20
RECIPES = (
    *("sentiment_smollm2", "topic_smollm2", "multi_attribute_smollm2", "formality_smollm2"),
    *("sentiment_coherent_smollm2", "yelp_smollm2"),
)


def measured(command: list[str], log: Path) -> int | None:
    """Return the largest resident set of a command in bytes; None if it fails."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss * 1024 if status == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    print("| recipe | planned, MiB | measured, MiB | planned / measured |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for name in options.recipes:
            config, ours = str(recipe_file(name)), [sys.executable, "-m", "ctrlreward"]
            said = subprocess.run(
                [*ours, "plan", config, "--hardware", "cpu", "--json"],
                capture_output=True,
                text=True,
            )
            if said.returncode:
                print(f"| {name} | not planned: {said.stderr.strip()} | | |", flush=True)
                continue
            planned = json.loads(said.stdout)["devices"]["cpu"]["peak_bytes"]
            job = [f"--trainer.max_steps={options.steps}", "--trainer.max_time=null"]
            job.append(f"--trainer.default_root_dir={place}/{name}")
            log = Path(place, f"{name}.log")
            peak = measured([*ours, "train", config, *job, "--trainer.accelerator=cpu"], log)
            if peak is None:
                print(f"| {name} | {planned / MIB:,.0f} | failed: see below | |", flush=True)
                print(log.read_text()[-2000:], file=sys.stderr)
                continue
            figures = f"{planned / MIB:,.0f} | {peak / MIB:,.0f} | {planned / peak:.2f}"
            print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
