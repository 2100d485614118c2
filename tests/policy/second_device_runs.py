"""Trainings with policy and scorers on given devices.

As a script, it trains a policy on the second device, which a process that has already run a
backward pass could not: `second_device_runs.py policy llama pegasus folder`.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from lightning_choice import (
    Generation,
    GenerationScorer,
    LoRA,
    OptimizerConfig,
    PolicyTuner,
    pl,
    quiet_trainer,
)
from torch.utils.data import DataLoader

from ctrlreward import CTRLEval, Perplexity, Reward, Samples

BATCH = Samples(
    ["ab", "cd", "f"], prompts=["ab", "cd", "f"], labels=["positive", "negative", "positive"]
)


def train(
    folders: dict[str, str], place: Path, scorers: str, policy: str = "cpu"
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Train for two steps with a validation after each; return what was learned and logged."""
    perplexity = Perplexity(folders["llama"])
    ctrleval = CTRLEval(folders["pegasus"], evaluators=4)
    reward = Reward(
        {"likelihood": perplexity["log_likelihood"], "relevance": ctrleval["attribute_relevance"]},
        device=scorers,
    )
    pl.seed_everything(0)
    tuner = PolicyTuner(
        folders["policy"],
        reward,
        generation=Generation(num_generations=4, max_completion_length=6),
        optimizer=OptimizerConfig(learning_rate=0.01),
        lora=LoRA(r=4),
    )
    judge = Perplexity(folders["llama"], device=scorers)
    held_out = GenerationScorer({"held_out": judge["perplexity"]}, BATCH)
    trainer = quiet_trainer(
        **placed(policy),
        callbacks=[held_out],
        check_val_every_n_epoch=None,
        default_root_dir=place,
        max_steps=2,
        num_sanity_val_steps=0,
        val_check_interval=1,
    )
    data: Any = DataLoader([BATCH] * 2, batch_size=None)
    trainer.fit(tuner, data, DataLoader([0]))
    learned = {n: p.detach().cpu() for n, p in tuner.named_parameters() if p.requires_grad}
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return learned, {n: v for n, v in logged.items() if not n.endswith("seconds")}


def placed(device: str) -> dict[str, Any]:
    """Return the options that put a trainer on a device."""
    if device == "cpu":
        return {"accelerator": "cpu", "devices": 1}

    class Second(pl.accelerators.CPUAccelerator):
        """The second device, as Lightning sees it."""

        def setup_device(self, device: torch.device) -> None:
            """Accept it: the device is not a CPU."""

    accelerator = Second()
    strategy = pl.strategies.SingleDeviceStrategy(torch.device(device), accelerator)
    return {"strategy": strategy, "accelerator": "auto", "devices": 1}


if __name__ == "__main__":
    from second_device import memory, register

    torch.set_num_threads(1)
    register()
    folders = dict(zip(("policy", "llama", "pegasus"), sys.argv[1:4], strict=True))
    out = Path(sys.argv[4])
    runs = {}
    places = ("cpu", "cpu"), ("cpu", "second:0"), ("second:0", "second:1")
    for policy, scorers in places:
        memory.peak[:] = memory.live
        learned, logged = train(folders, out, scorers, policy)
        values = {name: weight.flatten().tolist() for name, weight in learned.items()}
        gc.collect()
        runs[f"{policy} {scorers}"] = (values, logged, list(memory.peak), list(memory.live))
    (out / "runs.json").write_text(json.dumps(runs))
