"""A trainer with our callbacks pickles, during a run and after it, as with Lightning's own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_choice import (
    LIGHTNING,
    BeforeAfter,
    GenerationScorer,
    HistoryLogger,
    ParetoCheckpoint,
    PolicyTuner,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    RewardShaping,
    RolloutSamples,
    pl,
    quiet_trainer,
)

from ctrlreward import LexiconSentiment, Reward, Samples

pytestmark = pytest.mark.lightning
BoringModel = import_module(f"{LIGHTNING}.demos.boring_classes").BoringModel
POLARITY = LexiconSentiment()["polarity"]
PROMPTS = ["The soup", "The view"]


class Model(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        self.reward = Reward({"polarity": POLARITY})
        self.shape_rewards = self.last_rollout = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        samples = Samples(["a good soup", "a bad view"])
        self.last_rollout = (samples, self.reward(samples))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({"x": self.step(batch), "y": float(self.global_step)})

    def complete(self, prompts: list[str]) -> list[str]:
        return [" is good" for _ in prompts]


def copies(instance: Any) -> list[Any]:
    torch.save(instance, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    return [pickle.loads(pickle.dumps(instance)), loaded, copy.deepcopy(instance)]


class Copying(pl.Callback):
    """Copies trainer and module while a validation ends, and fails if it is to."""

    fails = False

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        copies(trainer)
        torch.save(pl_module, io.BytesIO())
        if self.fails:
            raise OSError("no space left")


CALLBACKS: dict[str, Callable[[str], list[Any]]] = {
    "best": lambda folder: [RewardCheckpoint("x", "min", dirpath=folder)],
    "front": lambda folder: [ParetoCheckpoint({"x": "min", "y": "max"}, dirpath=folder)],
    "stop and guard": lambda folder: [
        RewardEarlyStopping("x", "min"),
        ProxyGuard("y", "x", "max", "min"),
    ],
    "scores": lambda folder: [GenerationScorer({"p": POLARITY}, PROMPTS)],
    "shaping and rollouts": lambda folder: [RewardShaping(clip=(-1.0, 1.0)), RolloutSamples()],
    "report": lambda folder: [
        BeforeAfter({"p": POLARITY}, PROMPTS),
        RewardCheckpoint("x", "min", dirpath=folder),
    ],
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", CALLBACKS)
def test_the_trainer_pickles(name: str, fails: bool, tmp_path: Path) -> None:
    copying = Copying()
    copying.fails = fails
    trainer = quiet_trainer(
        default_root_dir=tmp_path,
        enable_checkpointing=name in ("best", "front", "report"),
        callbacks=[*CALLBACKS[name](str(tmp_path)), copying],
        logger=HistoryLogger(str(tmp_path)),
        max_steps=4,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        val_check_interval=2,
    )
    plain = quiet_trainer(logger=False)
    io_class = type(trainer.strategy.checkpoint_io)
    if fails:
        with pytest.raises(OSError, match="no space left"):
            trainer.fit(Model())
    else:
        trainer.fit(Model())
    for each in copies(trainer):
        assert each.global_step == (2 if fails else 4)
    # Nothing of ours is left on the trainer.
    assert vars(trainer._logger_connector).keys() == vars(plain._logger_connector).keys()
    assert type(trainer.strategy.checkpoint_io) is io_class
    assert vars(trainer.strategy).keys() - vars(plain.strategy).keys() == set()


def test_what_a_tuner_adds_to_its_trainer_pickles() -> None:
    tuner = PolicyTuner("smollm2-135m", Reward({"p": POLARITY}))
    for callback in tuner.configure_callbacks():
        assert isinstance(callback, pl.Callback)
        copies(callback)
