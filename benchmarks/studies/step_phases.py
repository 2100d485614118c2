"""Seconds of each phase of the demo's training step, and the share of the floor that they reach.

    python benchmarks/studies/step_phases.py [--runs 5] [--dtype float32]

The floor of a phase is the lower bound from its matrix products and the bytes of their weights
(`floor.py`). The update is the forward and backward pass of the policy, without the optimizer.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of floor, reward_step and side_by_side

import floor
import numpy as np
import torch
import yaml
from reward_step import CONFIG
from side_by_side import machine

from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig, PolicyTuner
from ctrlreward.policy.model import reference_policy
from ctrlreward.recipes.controlled_generation import PromptData, relevance_reward


def phases(dtype: str) -> dict[str, Callable[[], Any]]:
    """Return a callable per phase, on the same rollout."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    given = config["model"]["init_args"]
    reward = relevance_reward(**given["reward"]["init_args"] | {"dtype": dtype})
    tuner = PolicyTuner(
        given["model"],
        reward,
        Objective(**given["objective"]),
        Generation(**given["generation"]),
        OptimizerConfig(**given["optimizer"]),
        lora=LoRA(**given["lora"] | {"dtype": dtype}),
    )
    tuner.configure_model()
    batch = next(iter(PromptData(**config["data"]["init_args"]).train_dataloader())).as_prompts()
    rows = batch[[i for i in range(len(batch)) for _ in range(tuner.generation.num_generations)]]

    def sample() -> Any:
        torch.manual_seed(0)
        return tuner._sample(rows.require("prompts", "step_phases.py"))

    rollout = sample()
    texts = rows.completed(rollout.completions)
    rewards = torch.from_numpy(reward(texts).total).float()
    experience = tuner._experience(rollout, rewards)

    def reference() -> None:
        with reference_policy(tuner.policy):
            tuner._evaluate(rollout)

    def update() -> None:
        (terms,) = tuner._terms(experience)
        terms["loss"].backward()
        tuner.zero_grad()

    return {
        "sampling": sample,
        "reward": lambda: reward(texts),
        "reference": reference,
        "update": update,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    dtype = getattr(torch, options.dtype)
    peak = floor.speed(dtype)
    print(f"# {machine()}, {options.dtype}: {peak.gflops:.0f} GFLOP/s, {peak.gbytes:.1f} GB/s")
    works = phases(options.dtype)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.runs):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)
    total, least = 0.0, 0.0
    for name, work in works.items():
        median = float(np.median(seconds[name]))
        bound = floor.measure(work, work, median, dtype)
        assert bound is not None
        total, least = total + median, least + bound.floor_s
        spread = f"{median:7.2f} s ({min(seconds[name]):.2f} to {max(seconds[name]):.2f})"
        print(f"{name:12}{spread}   bound {bound.floor_s:6.2f} s   share {bound.share:4.0%}")
        print(json.dumps({"phase": name, "seconds": seconds[name], "floor_s": bound.floor_s}))
    print(f"{'step':12}{total:7.2f} s   bound {least:6.2f} s   share {least / total:4.0%}")


if __name__ == "__main__":
    main()
