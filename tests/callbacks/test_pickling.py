"""A trainer with our callbacks pickles, during a run and after it, as with Lightning's own."""

from __future__ import annotations

import copy
import io
import pickle
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


class Failing(pl.Callback):
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        raise OSError("no space left")


def test_the_trainer_pickles_before_during_and_after_a_run(tmp_path: Path) -> None:
    trainer = quiet_trainer(
        default_root_dir=tmp_path,
        enable_checkpointing=True,
        callbacks=[
            GenerationScorer({"p": POLARITY}, PROMPTS),
            RewardEarlyStopping("x", "min"),
            ProxyGuard("y", {"x": "min"}, "max"),
            RewardCheckpoint("x", "min", dirpath=str(tmp_path / "best")),
            ParetoCheckpoint({"x": "min", "y": "max"}, dirpath=str(tmp_path / "front")),
            RewardShaping(clip=(-1.0, 1.0)),
            RolloutSamples(),
            BeforeAfter({"p": POLARITY}, PROMPTS),
            Failing(),
        ],
        logger=HistoryLogger(str(tmp_path)),
        max_steps=4,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        val_check_interval=2,
    )
    plain, before = quiet_trainer(logger=False), copies(trainer)
    with pytest.raises(OSError, match="no space left"):
        trainer.fit(Model())
    assert [each.global_step for each in copies(trainer)] == [2] * 3
    ended = before[0]  # a copy, from its callbacks to its logger
    ended.callbacks = [each for each in ended.callbacks if not isinstance(each, Failing)]
    ended.fit(Model())
    assert [each.global_step for each in copies(ended)] == [4] * 3
    # Nothing of ours is left on the trainer.
    assert vars(trainer._logger_connector).keys() == vars(plain._logger_connector).keys()
    assert type(trainer.strategy.checkpoint_io) is type(plain.strategy.checkpoint_io)
    assert vars(trainer.strategy).keys() - vars(plain.strategy).keys() == set()
