"""Script of test_ddp_server.py: two CPU ranks that ask one server, in training and validation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from counting_module import Counting
from lightning_choice import GenerationScorer, pl, quiet_trainer

from ctrlreward import Reward, Samples

PROMPTS = Samples(["a", "b", "ab", "aab", "bb"], labels=["a"] * 5)


def labelled(texts: list[str]) -> Samples:
    return Samples(texts, labels=["a"] * len(texts))


class Writer(Counting):
    """Module that scores texts of its rank in each step, and completes prompts by more letters."""

    def __init__(self, reward: Reward) -> None:
        super().__init__()
        self.reward = reward
        self.totals: dict[str, float] = {}

    def texts(self) -> list[str]:
        step = self.global_step + 1
        return ["a" * step + "b" * (self.global_rank + 1), "b" * (self.global_rank + step)]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        texts = self.texts()
        totals = self.reward(labelled(texts)).total
        self.totals |= {f"{self.global_step} {t}": v for t, v in zip(texts, totals, strict=True)}
        return super().training_step(batch, batch_idx)

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return ["a" * round(self.weight.item()) + "b" for _ in prompts]


def run(reward: Reward, devices: int, folder: Path) -> dict[str, Any]:
    """Train three steps with a validation after each; return what was scored and logged."""
    logged: list[dict[str, float]] = []

    class Kept(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            metrics = trainer.callback_metrics
            logged.append({k: float(v) for k, v in metrics.items() if k.startswith("score/")})

    scores = {name: reward[name] for name in ("letters", "length")}
    module = Writer(reward)
    quiet_trainer(
        callbacks=[GenerationScorer(scores, PROMPTS), Kept()],
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        devices=devices,
        max_steps=3,
        num_sanity_val_steps=0,
        strategy="ddp" if devices > 1 else "auto",
        val_check_interval=1,
    ).fit(module)
    return {"totals": module.totals, "logged": logged}


def as_rank(rank: int) -> None:
    from ctrlreward import RemoteReward

    seen = run(RemoteReward(sys.argv[1]), 2, Path(sys.argv[2]))
    Path(sys.argv[2], f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(as_rank)
