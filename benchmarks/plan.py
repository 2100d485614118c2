"""Peak memory of recipes, as `ctrlreward plan` computes it and as measured.

    python benchmarks/plan.py [RECIPE ...] [--steps 2]
    python benchmarks/plan.py --card cuda

Each recipe trains a few steps in a process of its own, with its validations and its report; the
measured peak is the resident set of that process. Models that a recipe needs have to be in `runs/`
of the current folder. Recipes without them are left out.

`--card` trains `PolicyTuner` on a GPU instead, on models of published sizes with random weights
(`gpu.py`), and compares the largest number of bytes of tensors, and the seconds of each phase.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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


def on_card(device: str, size: str, place: Path) -> Iterator[str]:
    """Yield a row for each of two policies: bytes and seconds, planned and measured."""
    import gpu
    import numpy as np
    import torch

    from ctrlreward.commands.plan import HARDWARE, _seconds
    from ctrlreward.commands.planned_step import StepPlan
    from ctrlreward.policy import Generation, LoRA, Objective, PolicyTuner

    given = argparse.Namespace(
        device=device, weights=None, size=size, scorers=None, output=place, seconds=600
    )
    kit = gpu.Kit(given, place)
    name = next((n for n in HARDWARE if n in str(kit.card.describe()["card"]).lower()), "h100")
    memory = HARDWARE[name].memory
    if device.startswith("cuda"):
        memory = torch.cuda.mem_get_info()[1]
    yield f"{kit.card.describe()['card']}, torch {torch.__version__}, as {name}\n"
    yield "| policy | | peak, MiB | sampling, s | reward, s | rest, s |\n|---|---|---|---|---|---|"
    for model in ("llama", "policy"):
        measured = gpu.step(kit, lambda model=model: gpu.train_ours(kit, model))
        reward = gpu.a_reward(kit, device)
        tuner = PolicyTuner(
            kit.folders[model],
            reward,
            Objective(beta=0.05),
            Generation(**gpu.sampling(kit)),
            lora=LoRA(r=16),
        )
        data = SimpleNamespace(
            setup=lambda stage: None, train_dataloader=lambda: [gpu.prompts(kit)]
        )
        plan = StepPlan(tuner, data, [], device if ":" in device else f"{device}:0", memory)
        phases = plan.phases()
        peak = sum(each["peak_bytes"] for each in plan.devices(phases, 0).values())
        seconds = {
            key: _seconds(cost, HARDWARE[name], plan.policy.dtype, device)
            for key, cost in phases.items()
        }
        rest = seconds["log-probabilities"] + seconds["update"]
        times = (seconds["sampling"], seconds["reward"], rest)
        row = " | ".join(f"{value:.2f}" for value in times)
        yield f"| {model} | planned | {peak / MIB:,.0f} | {row} |"
        row = " | ".join(f"{measured[f'{key}, s']:.2f}" for key in ("sampling", "reward", "rest"))
        yield f"| | measured | {measured['peak MiB'] or np.nan:,.0f} | {row} |"
        batch = [(type(m).__name__, m.batch_tokens, m.read) for m in plan.models]
        print(batch, {k: v.peak // MIB for k, v in phases.items()}, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--card", metavar="DEVICE", help="a GPU, such as cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="with --card")
    options = parser.parse_args()
    if options.card:
        with tempfile.TemporaryDirectory() as place:
            for row in on_card(options.card, options.size, Path(place)):
                print(row, flush=True)
        return
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
