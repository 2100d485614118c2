"""Script of test_distributed.py: runs on two CPU ranks that each write their results."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping, Sequence
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


class Uneven(shared.Counter):
    """Module that logs a metric falling on rank 0 and rising on rank 1."""

    fails_on_rank = -1

    def complete(self, prompts: Sequence[str]) -> list[str]:
        if self.global_rank == self.fails_on_rank:
            raise RuntimeError("no words")
        return super().complete(prompts)

    def export_adapter(self, folder: str) -> None:
        (Path(folder) / f"rank{self.global_rank}").touch()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        sign = 1.0 if self.global_rank == 1 else -1.0
        self.log("uneven", sign * self.weight.item(), sync_dist=False)


class Broken(shared.Curve):
    def score_samples(self, samples: Samples) -> dict[str, object]:
        raise ValueError("no scores")


def run(name: str, scorer: shared.Curve, fails_on_rank: int = -1) -> dict[str, object]:
    """Train with all that decides."""
    folder, module = Path(sys.argv[1]) / name, Uneven()
    module.fails_on_rank = fails_on_rank
    prompts = Samples(texts=[f"p{i}" for i in range(5)])
    stopper = RewardEarlyStopping("score/v", patience=2)
    keeper = RewardCheckpoint("score/v", dirpath=str(folder / "kept"))
    directions = {"score/v": "max", "uneven": "max"}
    front = ParetoCheckpoint(directions, dirpath=str(folder / "front"), save_last=False)
    watch = GenerationScorer({"v": scorer["value"]}, prompts, generations_per_prompt=2)
    trainer = trainer_of([stopper, watch, keeper, front], 8, folder, num_sanity_val_steps=2)
    error = ""
    try:
        trainer.fit(module)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {
        "error": error,
        "score": float(trainer.callback_metrics.get("score/v", -1)),
        "prompts": [call["prompts"] for call in module.calls],
        "scored": [list(samples.texts) for samples in scorer.scored],
        "stopped_step": stopper.stopped_step,
        "best": Path(keeper.best_model_path).name,
        "front": front.decider.to_dict(),
    }


class ByText(shared.Curve):
    """Scorer with a value that depends on the text alone, and a score of the corpus."""

    corpus_columns = ("value", "loss")

    def corpus_of(self, columns: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"value": float((columns["value"] * columns["loss"]).sum())}

    def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
        self.scored.append(samples)
        value = np.array([zlib.crc32(text.encode()) / 2**32 for text in samples.texts])
        return {"value": value, "loss": 1.0 - value}


class Steady(shared.Counter):
    """Module whose completions depend on prompt, label and step only, with a part in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Dropout().eval()
        self.asked: list[list[Any]] = []

    def complete_samples(self, samples: Samples) -> list[str]:
        prompts = list(samples.prompts or ())
        self.asked.append([prompts, self.training, torch.is_grad_enabled()])
        rows = zip(prompts, samples.labels or (), strict=True)
        return [f" at {round(self.weight.item())} {prompt}, {label}" for prompt, label in rows]


def run_steady(folder: Path, devices: int) -> dict[str, object]:
    """Train with seven prompts, two of them equal, so the ranks get uneven shares.

    Compare before and after on five prompts, two completions each, with others.
    """
    prompts = Samples(["p0", "p1", "p2", "p3", "p4", "p5", "p0"], labels=list("abababa"))
    test = Samples([f"t{i}" for i in range(5)], labels=list("ababa"))
    scorer, module = ByText([]), Steady()
    scores = {"v": scorer["value"]}
    callbacks = [
        GenerationScorer(scores, prompts),
        RewardCheckpoint("score/v", dirpath=str(folder / "kept")),
        BeforeAfter(scores, test, 2, others={"copy": Samples(["x", "y", "z", "u", "w"])}),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    logger = WandbLogger(save_dir=folder, offline=True)
    trainer = trainer_of(callbacks, 3, folder, devices, logger=logger)
    trainer.fit(module)
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    return {
        "metrics": metrics,
        "asked": [call for call in module.asked if call[0][0][0] == "t"],
        "modes": [module.training, module.frozen.training],
        "scored": [list(samples.texts) for samples in scorer.scored],
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
        "decided": run("decided", shared.Curve([0.0, 0.25, 0.5, 0.25, 0.25])),
        "generator": run("generator", shared.Curve([0.0]), fails_on_rank=1),
        "scorer": run("scorer", Broken([0.0])),
        "steady": run_steady(folder / "steady", 2),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    wandb.teardown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(run_all)
