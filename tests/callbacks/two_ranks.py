"""Script of test_distributed.py: runs on two CPU ranks that each write their results."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wandb
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    ParetoCheckpoint,
    RewardCheckpoint,
    RewardEarlyStopping,
    RewardShaping,
    UsefulRange,
    WandbLogger,
    pl,
    quiet_trainer,
)
from module_files import load

from ctrlreward import Reward, RewardBatch, Samples

shared = load(Path(__file__).with_name("conftest.py"))

CURVE = [0.0, 0.25, 0.5, 0.25, 0.25]  # by step
PROMPTS = Samples(["p0", "p1", "p2", "p3", "p4", "p5", "p0"], labels=list("abababa"))
TEST = Samples([f"t{i}" for i in range(5)], labels=list("ababa"))


class ByText(shared.Curve):
    """Scorer with a value of step and text, and a score of the corpus."""

    corpus_columns = ("value", "loss")
    breaks = False

    def corpus_of(self, columns: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"value": float((columns["value"] * columns["loss"]).sum())}

    def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
        if self.breaks:
            raise ValueError("no scores")
        noise = [zlib.crc32(text.encode()) / 2**32 / 100 for text in samples.texts]
        value = super().score_samples(samples)["value"] + noise
        return {"value": value, "loss": 1.0 - value}


class Module(shared.Counter):
    """Completions depend on prompt, label and step alone, with a part in eval mode.

    Logs a metric that falls on rank 0 and rises on rank 1, and one on rank 0 alone.
    """

    fails_on_rank = -1

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Dropout().eval()
        self.drawn: list[float] = []

    def complete_samples(self, samples: Samples) -> list[str]:
        if self.global_rank == self.fails_on_rank:
            raise RuntimeError("no words")
        prompts = list(samples.prompts or ())
        self.calls.append([prompts, self.training, torch.is_grad_enabled()])
        self.drawn.append(torch.rand(()).item())
        rows = zip(prompts, samples.labels or (), strict=True)
        return [f" at {round(self.weight.item())} {prompt}, {label}" for prompt, label in rows]

    def export_adapter(self, folder: str) -> None:
        (Path(folder) / f"rank{self.global_rank}").touch()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        sign = 1.0 if self.global_rank == 1 else -1.0
        self.log("uneven", sign * self.weight.item(), sync_dist=False)
        if self.global_rank == 0:
            self.log("alone", sign * self.weight.item(), sync_dist=False)


def run(
    folder: Path, devices: int, fails_on_rank: int = -1, breaks: bool = False
) -> dict[str, Any]:
    """Train with all that decides, on prompts of which two are equal and ranks get uneven shares.

    Compare before and after on five prompts, two completions each.
    """
    scorer, module = ByText(CURVE), Module()
    scorer.breaks, module.fails_on_rank = breaks, fails_on_rank
    scores = {"v": scorer["value"]}
    stopper = RewardEarlyStopping("score/v", patience=2)
    keeper = RewardCheckpoint("score/v", dirpath=str(folder / "kept"))
    directions = {"score/v": "max", "uneven": "max", "alone": "max"}
    front = ParetoCheckpoint(directions, dirpath=str(folder / "front"), save_last=False)
    report = BeforeAfter(scores, TEST, 2)
    folder.mkdir(parents=True, exist_ok=True)
    fails = breaks or fails_on_rank >= 0
    callbacks = [stopper, GenerationScorer(scores, PROMPTS), keeper, front]
    trainer = trainer_of(
        callbacks if fails else [*callbacks, report],
        8,
        folder,
        devices,
        logger=False if fails else WandbLogger(save_dir=folder, offline=True),
        num_sanity_val_steps=2,
    )
    error = ""
    try:
        trainer.fit(module)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {
        "error": error,
        "metrics": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "asked": module.calls,
        "drawn": module.drawn,
        "modes": [module.training, module.frozen.training],
        "scored": [list(samples.texts) for samples in scorer.scored],
        "stop": stopper.state.to_dict(),
        "best": Path(keeper.best_model_path).name,
        "front": front.decider.to_dict(),
    }


class Shaped(shared.Counter):
    """Module with larger rewards and a failed one on rank 1; the totals are its only component."""

    def __init__(self) -> None:
        super().__init__()
        self.reward = Reward({"v": shared.Curve([0.0])["value"]})
        self.shape_rewards = None

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        totals = ([0.0, 1.0, 2.0 + batch_idx], [np.nan, 50.0 + batch_idx])[self.global_rank]
        scored = RewardBatch(np.array(totals), {"v": np.array(totals)}, np.isnan(totals), 0.0)
        assert self.shape_rewards is not None
        self.shape_rewards(Samples(["x"] * len(totals)), scored, torch.ones(len(totals)))
        return super().training_step(batch, batch_idx)


def run_shaped() -> dict[str, object]:
    """Train with a bound on the totals of both ranks; only the totals of rank 1 exceed it."""
    shaping = RewardShaping(ranges={"v": UsefulRange(high=5.0)}, range_rate=0.5)
    trainer_of([shaping], 3, Path(sys.argv[1]), enable_checkpointing=False).fit(Shaped())
    return shaping.state_dict()


def trainer_of(
    callbacks: list[pl.Callback], max_steps: int, folder: Path, devices: int = 2, **options: object
) -> pl.Trainer:
    """Return a trainer that validates after each step."""
    given = {"enable_checkpointing": True, "num_sanity_val_steps": 0, **options}
    return quiet_trainer(
        callbacks=callbacks,
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        devices=devices,
        max_steps=max_steps,
        strategy="ddp" if devices > 1 else "auto",
        val_check_interval=1,
        **given,
    )


def run_all(rank: int) -> None:
    folder = Path(sys.argv[1])
    seen = {
        "ranged": run_shaped(),
        "generator": run(folder / "generator", 2, fails_on_rank=1),
        "scorer": run(folder / "scorer", 2, breaks=True),
        "whole": run(folder / "whole", 2),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    wandb.teardown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(run_all)
