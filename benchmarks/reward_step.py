"""Share of the reward in a training step of the demo.

    python benchmarks/reward_step.py [--runs 5] [--steps 2]

Alternates three forms of the demo's configuration: serial; overlapped, with a rollout scored during
the next step (`overlap`); and overlapped with an instant reward, which leaves generation and
updates. Prints a row and a line of JSON per form: median seconds per step, the share of a step
spent waiting for the reward, and the share beyond generation and updates. A run takes about three
and a half minutes on two cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
import warnings
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
import yaml
from side_by_side import machine

from ctrlreward import Reward, RewardBatch, Samples
from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig, PolicyTuner
from ctrlreward.recipes.controlled_generation import PromptData, relevance_reward

CONFIG = Path(__file__).parent.parent / "configs/controlled_generation/sentiment_smollm2.yaml"


class Clock(pl.Callback):
    """Seconds of each step, and the share of them spent waiting for scores."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.waited: list[float] = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        # The module's own share would not count Lightning's backward pass.
        self.waited.append(module.waited / self.seconds[-1])


class Timed(PolicyTuner):
    """A tuner that keeps the seconds that the last step waited for its scores."""

    waited = 0.0

    def _log_step(self, pending, terms, waited: float, seconds: float) -> None:
        self.waited = waited
        super()._log_step(pending, terms, waited, seconds)


class Instant(Reward):
    """A reward of random numbers that takes no time."""

    def _score(self, samples: Samples) -> RewardBatch:
        drawn = np.random.default_rng(0).random(len(samples))
        return RewardBatch(drawn, {"drawn": drawn}, np.zeros(len(samples), dtype=bool), 0.0)


def run(form: str, steps: int) -> Clock:
    """Run some steps of the demo after one warm-up step (with overlap, two)."""
    gc.collect()  # the last trainer and its module reference each other and hold a gigabyte
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    given = config["model"]["init_args"]
    reward = relevance_reward(**given["reward"]["init_args"])
    if form == "instant":
        reward = Instant(reward.components, aggregate="weighted")
        reward.load = lambda: None
    overlap = form != "serial"
    clip = config["trainer"]["gradient_clip_val"]
    pl.seed_everything(0, verbose=False)
    manual = {"overlap": True, "max_grad_norm": clip} if overlap else {}
    tuner = Timed(
        given["model"],
        reward,
        Objective(**given["objective"]),
        Generation(**given["generation"]),
        OptimizerConfig(**given["optimizer"], **manual),
        lora=LoRA(**given["lora"]),
    )
    clock = Clock()
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[clock],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        gradient_clip_val=None if overlap else clip,
        limit_train_batches=steps + 1 + overlap,
        limit_val_batches=0,
        logger=False,
        max_epochs=1,
    )
    trainer.fit(tuner, PromptData(**config["data"]["init_args"]))
    clock.seconds, clock.waited = clock.seconds[-steps:], clock.waited[-steps:]
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="timed steps per run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", action="store_true", help="prints nothing: no cost curve here")
    options = parser.parse_args()
    if options.curve:
        return
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print(f"# {machine()}")
    forms = ("serial", "overlapped", "instant")
    clocks: dict[str, list[Clock]] = {form: [] for form in forms}
    for _ in range(options.runs):
        for form in forms:
            clocks[form].append(run(form, options.steps))
    seconds = {f: [float(np.mean(c.seconds)) for c in runs] for f, runs in clocks.items()}
    for form in forms:
        beyond = [
            1 - instant_s / form_s
            for form_s, instant_s in zip(seconds[form], seconds["instant"], strict=True)
        ]
        record = {
            "suite": "reward_step",
            "form": form,
            "seconds": seconds[form],
            "waiting_share": [float(np.mean(c.waited)) for c in clocks[form]],
            "beyond_generating_and_updating": beyond,
        }
        print(
            f"reward_step  {form:<12}{np.median(seconds[form]):7.2f} s per step   waits "
            f"{np.median(record['waiting_share']):5.1%}   beyond generation and updates "
            f"{np.median(beyond):5.1%} ({min(beyond):.1%} to {max(beyond):.1%})"
        )
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
