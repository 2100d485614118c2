"""Peak memory of recipes, as `ctrlreward plan` computes it and as measured.

    python benchmarks/plan.py [RECIPE ...] [--steps 2]
    python benchmarks/plan.py --card cuda
    python benchmarks/plan.py --published

Each recipe trains a few steps in a process of its own, with its validations and its report; the
measured peak is the resident set of that process. Models that a recipe needs have to be in `runs/`
of the current folder. Recipes without them are left out.

`--card` trains `PolicyTuner` on a GPU instead, on models of published sizes with random weights
(`gpu.py`), and compares the largest number of bytes of tensors, and the seconds of each phase.

`--published` plans the presets for one card each, from the published configurations of their
policies with SmolLM2's tokenizer.
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
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from ctrlreward.commands.plan import plan_of
from ctrlreward.commands.recipes import recipe_file
from ctrlreward.weights.loading import load_tokenizer

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


# Configurations as published on the hub.
# fmt: off
PUBLISHED = {
    "sentiment_smollm2": None,
    "sentiment_llama": ("llama", {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True}),
    "sentiment_qwen": ("qwen2", {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 32768, "tie_word_embeddings": True}),
    "yelp_flan_t5": ("t5", {
        "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
        "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
        "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}),
}
# fmt: on


def without_weights(family: str, shape: dict[str, Any], folder: Path) -> str:
    """Write a configuration, SmolLM2's tokenizer, and an empty file of weights."""
    AutoConfig.for_model(family, **shape).save_pretrained(folder)
    load_tokenizer("smollm2-135m").save_pretrained(folder)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    return str(folder)


def published(place: Path) -> Iterator[str]:
    """Yield a row for each policy."""
    yield "| configuration | parameters | trained | completions | seconds | peak, GB | fits |"
    yield "|---|---|---|---|---|---|---|"
    for name, given in PUBLISHED.items():
        job = ["--config", str(recipe_file(name))]
        if given is not None:
            job.append(f"--model.init_args.model={without_weights(*given, place / name)}")
        plan = plan_of([*job, "--model.init_args.generation.max_completion_length=128"], "h100")
        policy, (device,) = plan["models"][0], plan["devices"].values()
        yield (
            f"| `{name}` | {policy['parameters']:,} | {policy['trained'] / 1e6:.1f} M | "
            f"{plan['step']['completions']} | {plan['seconds']:.1f} | "
            f"{device['peak_bytes'] / 1e9:.1f} | {', '.join(map(str, device['fits_gb']))} |"
        )


def on_card(device: str, size: str, place: Path) -> Iterator[str]:
    """Yield a row for each of two policies: bytes and seconds, planned and measured."""
    import gpu
    import numpy as np

    from ctrlreward.commands.plan import HARDWARE, _seconds, card_here
    from ctrlreward.commands.planned_step import StepPlan
    from ctrlreward.policy import Generation, LoRA, Objective, PolicyTuner

    given = argparse.Namespace(
        device=device, weights=None, size=size, scorers=None, output=place, seconds=600
    )
    kit = gpu.Kit(given, place)
    name = card_here()
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
        batch = [(type(m).__name__, m.batch_tokens, m.rows, m.width, m.passes) for m in plan.models]
        print(batch, {k: v.peak // MIB for k, v in phases.items()}, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--card", metavar="DEVICE", help="a GPU, such as cuda")
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="with --card")
    options = parser.parse_args()
    if options.card or options.published:
        with tempfile.TemporaryDirectory() as place:
            where = Path(place)
            rows = published(where)
            if options.card:
                rows = on_card(options.card, options.size, where)
            for row in rows:
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
