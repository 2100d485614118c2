"""Script of test_distributed.py: runs on two CPU ranks that each write their results."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import decision_cases
import numpy as np
import torch
import wandb
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    ParetoCheckpoint,
    ProxyGuard,
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


class Tuned(shared.Counter):
    fails_on_rank = -1

    def complete(self, prompts: Sequence[str]) -> list[str]:
        if self.global_rank == self.fails_on_rank:
            raise RuntimeError("no words")
        return super().complete(prompts)

    def export_adapter(self, folder: str) -> None:
        (Path(folder) / f"rank{self.global_rank}").touch()


class Uneven(Tuned):
    """Module that logs a metric falling on rank 0 and rising on rank 1."""

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        sign = 1.0 if self.global_rank == 1 else -1.0
        self.log("uneven", sign * self.weight.item(), sync_dist=False)


class Broken(shared.Curve):
    def score_samples(self, samples: Samples) -> dict[str, object]:
        raise ValueError("no scores")


class Steady(Tuned):
    """Module whose completions depend on prompt, label and step only."""

    def complete_samples(self, samples: Samples) -> list[str]:
        rows = zip(samples.prompts or (), samples.labels or (), strict=True)
        return [f" at {round(self.weight.item())} {prompt}, {label}" for prompt, label in rows]


class ByText(shared.Curve):
    """Scorer with a value that depends on the text alone."""

    corpus_columns = ("value", "loss")

    def corpus_of(self, columns: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"value": float((columns["value"] * columns["loss"]).sum())}

    def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
        self.scored.append(samples)
        value = np.array([zlib.crc32(text.encode()) / 2**32 for text in samples.texts])
        return {"value": value, "loss": 1.0 - value}


def run_steady(folder: Path, devices: int) -> dict[str, object]:
    """Train with seven prompts, two of them equal, so the ranks get uneven shares."""
    prompts = Samples(["p0", "p1", "p2", "p3", "p4", "p5", "p0"], labels=list("abababa"))
    scorer = ByText([])
    watch = GenerationScorer({"v": scorer["value"]}, prompts)
    trainer = trainer_of([watch], 3, folder, devices)
    trainer.fit(Steady())
    return {
        "metrics": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "scored": [list(samples.texts) for samples in scorer.scored],
    }


class Modes(Steady):
    """The same, with a part that stays in eval mode, and the prompts and modes of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Dropout().eval()
        self.asked: list[object] = []

    def complete_samples(self, samples: Samples) -> list[str]:
        self.asked.append([list(samples.prompts or ()), self.training, torch.is_grad_enabled()])
        return super().complete_samples(samples)


def run_compared(folder: Path, devices: int) -> dict[str, object]:
    """Compare before and after on five prompts, two completions each, with others."""
    test = Samples([f"t{i}" for i in range(5)], labels=list("ababa"))
    scorer = ByText([])
    scores = {"v": scorer["value"]}
    module = Modes()
    callbacks = [
        GenerationScorer(scores, Samples(["p0", "p1"], labels=["a", "b"])),
        RewardCheckpoint("score/v", dirpath=str(folder / "kept")),
        BeforeAfter(scores, test, 2, others={"copy": Samples(["x", "y", "z", "u", "w"])}),
    ]
    trainer_of(callbacks, 3, folder, devices, enable_checkpointing=True).fit(module)
    return {
        "asked": [call for call in module.asked if call[0][0][0] == "t"],  # type: ignore[index]
        "modes": [module.training, module.frozen.training],
        "scored": [list(samples.texts) for samples in scorer.scored],
    }


class Gamed(Tuned):
    """Module whose proxy rises on rank 1 only."""

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("proxy", float(self.global_step * (2 * self.global_rank - 1)))


class Shaped(Tuned):
    """Module with larger rewards, a failed one and a larger KL on rank 1.

    The totals are also its only component.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reward = Reward({"v": shared.Curve([0.0])["value"]})
        self.shape_rewards = None
        self.beta = 1.0

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        totals = ([0.0, 1.0, 2.0 + batch_idx], [np.nan, 50.0 + batch_idx])[self.global_rank]
        scored = RewardBatch(np.array(totals), {"v": np.array(totals)}, np.isnan(totals), 0.0)
        assert self.shape_rewards is not None
        self.shape_rewards(Samples(["x"] * len(totals)), scored, torch.ones(len(totals)))
        self.log("policy/kl", 0.25 + 0.5 * self.global_rank)
        return super().training_step(batch, batch_idx)


def run_shaped(**options: object) -> dict[str, object]:
    shaping = RewardShaping(**options)
    trainer_of([shaping], 3).fit(Shaped())
    return shaping.state_dict()


def run_guarded() -> dict[str, object]:
    falls = partial(decision_cases.BY_PROMPT["alarm at once"].scores, "a")
    prompts = Samples([f"p{i}" for i in range(12)])
    watch = GenerationScorer({"a": shared.ByPrompt(falls)["value"]}, prompts)
    guard = ProxyGuard("proxy", "score/a", "max", stop=True)
    trainer = trainer_of([watch, guard], 8)
    trainer.fit(Gamed())
    return {"alarm_step": guard.alarm_step, "steps": trainer.global_step}


def run_logged(folder: Path) -> None:
    """Train with a scorer, which logs a table to an offline run."""
    scorer = shared.Curve([0.0, 0.25, 0.5])
    watch = GenerationScorer({"v": scorer["value"]}, Samples(texts=["p0", "p1"]))
    folder.mkdir(exist_ok=True)
    logger = WandbLogger(save_dir=folder, offline=True)
    trainer_of([watch], 2, logger=logger).fit(Tuned())


def trainer_of(
    callbacks: list[pl.Callback],
    max_steps: int,
    folder: Path | None = None,
    devices: int = 2,
    **options: object,
) -> pl.Trainer:
    """Return a trainer that validates after each step."""
    given = {"num_sanity_val_steps": 0, **options}
    return quiet_trainer(
        callbacks=callbacks,
        check_val_every_n_epoch=None,
        default_root_dir=folder or sys.argv[1],
        devices=devices,
        max_steps=max_steps,
        strategy="ddp" if devices > 1 else "auto",
        val_check_interval=1,
        **given,
    )


def run(
    name: str,
    module: Tuned,
    scorer: shared.Curve,
    second: tuple[str, str] = ("score/fail_rate", "min"),
) -> dict[str, object]:
    folder = Path(sys.argv[1]) / name
    prompts = Samples(texts=[f"p{i}" for i in range(5)])
    watch = GenerationScorer({"v": scorer["value"]}, prompts, generations_per_prompt=2)
    stopper = RewardEarlyStopping("score/v", patience=2)
    keeper = RewardCheckpoint("score/v", dirpath=str(folder / "kept"))
    directions = {"score/v": "max", second[0]: second[1]}
    front = ParetoCheckpoint(directions, dirpath=str(folder / "front"), save_last=False)
    callbacks = [stopper, watch, keeper, front]
    options = {"enable_checkpointing": True, "num_sanity_val_steps": 2}
    trainer = trainer_of(callbacks, 8, folder, **options)
    error = ""
    try:
        trainer.fit(module)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {
        "error": error,
        "metrics": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "prompts": [call["prompts"] for call in module.calls],
        "scored": [list(samples.texts) for samples in scorer.scored],
        "stopped_step": stopper.stopped_step,
        "best": Path(keeper.best_model_path).name,
        "front": front.decider.to_dict(),
    }


def run_by_prompt(folder: Path) -> dict[str, object]:
    """Return the states of all cases by prompt."""
    states = {}
    for name in sys.argv[2:]:
        case = decision_cases.BY_PROMPT[name]
        callbacks = shared.callbacks_of(case, folder / name)
        options = {"enable_checkpointing": True}
        trainer_of(callbacks, len(case.a), **options).fit(Tuned())
        states[name] = {type(c).__name__: c.state.to_dict() for c in callbacks[1:]}
    return states


def run_all(rank: int) -> None:
    folder, failing = Path(sys.argv[1]), Tuned()
    failing.fails_on_rank = 1
    curve = [0.0, 0.25, 0.5, 0.25, 0.25]
    seen = {
        # A bound on the totals of both ranks; only the totals of rank 1 exceed it.
        "ranged": run_shaped(ranges={"v": UsefulRange(high=5.0)}, range_rate=0.5),
        "guarded": run_guarded(),
        "by prompt": run_by_prompt(folder / "by_prompt"),
        "good": run("good", Tuned(), shared.Curve(curve)),
        "uneven": run("uneven", Uneven(), shared.Curve(curve), ("uneven", "max")),
        "generator": run("generator", failing, shared.Curve([0.0])),
        "scorer": run("scorer", Tuned(), Broken([0.0])),
        "compared": run_compared(folder / "compared", 2),
        "steady": run_steady(folder / "steady", 2),
    }
    run_logged(folder / "wandb_runs")
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    wandb.teardown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(run_all)
