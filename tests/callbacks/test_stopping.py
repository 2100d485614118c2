from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from lightning_choice import (
    MisconfigurationException,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)
from torch.utils.data import DataLoader, IterableDataset

from ctrlreward import Reward
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule

RISES_THEN_FALLS = [0.0, 0.1, 0.2, 0.5, 0.4, 0.5, 0.3, 0.2, 0.1, 0.0]
HILL = [0.01 * min(step, 32 - step) for step in range(33)]


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


# Settings of the trainer, with eight batches per epoch, and the step at which two scores in a row
# have not improved.
WHEN_TO_VALIDATE = [
    ({"check_val_every_n_epoch": 2, "val_check_interval": 1.0, "max_epochs": 9}, 48),
    ({"check_val_every_n_epoch": 1, "val_check_interval": 0.25, "max_epochs": 9}, 20),
    ({"check_val_every_n_epoch": None, "val_check_interval": 5, "max_steps": 90}, 25),
    ({"endless": True, "val_check_interval": 4, "max_steps": 90}, 24),
]


@pytest.mark.parametrize(("when", "step"), WHEN_TO_VALIDATE)
def test_any_validation_interval(when, step, fit, counter, watch) -> None:
    """The scores peak at step 16. The second validation after the best one stops the run."""
    module = counter()
    if when.pop("endless", False):
        module.train_dataloader = lambda: DataLoader(Endless())
    stopper = RewardEarlyStopping("score/v", patience=2)
    fit(module, [stopper, watch(HILL)], **{"max_steps": -1, **when})
    assert stopper.stopped_step == step


@pytest.mark.parametrize(
    "callback",
    [
        RewardEarlyStopping("score/x", "max"),
        RewardCheckpoint("score/v", constraints={"score/x": (0.5, None)}),
        ParetoCheckpoint({"score/v": "max", "score/x": "max"}),
        ProxyGuard("score/x", "score/v", "max"),
    ],
)
def test_a_key_that_is_not_logged(callback, fit, counter, watch) -> None:
    with pytest.raises(MisconfigurationException, match="score/x"):
        fit(counter(), [watch([0.0]), callback])
    with pytest.raises(MisconfigurationException, match="validation"):
        fit(counter(), [callback], limit_val_batches=0)


def test_the_mode_is_the_declared_direction(fit, counter, curve, watch, tmp_path) -> None:
    """Of a score of the trainer or of the module's reward; other keys need a mode."""

    class Rewarded(counter):
        reward = Reward({"loss": (curve([0.0])["loss"], -1.0)})
        shape_rewards = None

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log_dict({"reward/total": self.weight, "reward/loss": -self.weight})

    def callbacks() -> list[pl.Callback]:
        return [
            watch([0.5, 0.4, 0.6, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5], "vl"),
            RewardEarlyStopping("score/l", patience=2, min_delta=0.01),
            RewardCheckpoint("score/l", dirpath=str(tmp_path / "l")),
            ParetoCheckpoint(["score/l", "score/v"], str(tmp_path / "front")),
            ProxyGuard("reward/total", "reward/loss"),
        ]

    _, stopper, keeper, front, guard = both = callbacks()
    fit(Rewarded(), both)
    assert (keeper.mode, stopper.rule.mode, *guard.rule.modes.values()) == ("min",) * 3
    assert (guard.rule.proxy_mode, front.metrics) == ("max", {"score/l": "min", "score/v": "max"})
    assert (keeper.selected_step, front.selected_step, stopper.stopped_step) == (3, 3, 5)
    resumed = callbacks()
    fit(Rewarded(), resumed, ckpt_path=str(tmp_path / "l" / "last.ckpt"))
    assert (resumed[1].stopped_step, resumed[2].selected_step) == (5, 3)
    for callback, message in (
        (RewardEarlyStopping("val_loss"), "mode"),
        (RewardEarlyStopping("score/l", "max"), "mode"),
        (ParetoCheckpoint({"score/v": "max", "score/l": "max"}), r"metrics\['score/l'\]"),
        (ProxyGuard("score/v", {"score/l": "max"}), r"held_out\['score/l'\]"),
        (RewardCheckpoint("score/vv"), "'score/vv'"),
        (ProxyGuard("reward/totl", "score/v"), "'reward/total'"),
        (ProxyGuard("score/v", "b"), r"held_out\['b'\]"),
        (RewardCheckpoint("score/v", dirpath="memory://kept"), "dirpath"),
        (ParetoCheckpoint(["score/l", "score/v"], dirpath="memory://kept"), "dirpath"),
    ):
        with pytest.raises(MisconfigurationException, match=message):
            fit(Rewarded(), [callback, *callbacks()[:1]])


def test_a_stopped_run_continues_if_resumed_with_more_patience(
    fit, counter, watch, tmp_path
) -> None:
    def run(patience: int, ckpt_path: str | None) -> RewardEarlyStopping:
        stopper = RewardEarlyStopping("score/v", patience=patience)
        saver = RewardCheckpoint("score/v", dirpath=str(tmp_path / "checkpoints"))
        callbacks = [stopper, saver, watch(RISES_THEN_FALLS)]
        fit(counter(), callbacks, max_steps=20, ckpt_path=ckpt_path)
        return stopper

    assert run(2, None).stopped_step == 5
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "training ended before")  # it ends at once
        ended = run(2, "last")
    assert (ended.stopped_step, ended.stopped_by) == (5, "patience_exhausted")
    again = run(4, "last")
    assert again.rule.patience == 4
    assert again.stopped_step == 7


STOP, BEST = StopRule("score/l", patience=2, min_delta=0.01), BestRule("score/v", top_k=3)
ALARM, FRONT = AlarmRule("score/v", "score/l", level=0.01), ParetoRule({"a": "max", "b": "min"})


def test_a_callback_takes_its_rule_or_its_arguments(fit, counter, watch) -> None:
    for callback, rule in (
        (RewardEarlyStopping("score/l", patience=2, min_delta=0.01), STOP),
        (RewardCheckpoint("score/v", save_top_k=3), BEST),
        (ProxyGuard("score/v", "score/l", level=0.01), ALARM),
        (ParetoCheckpoint({"a": "max", "b": "min"}), FRONT),
        (ParetoCheckpoint(FRONT), FRONT),
    ):
        assert callback.rule == rule
    with pytest.raises(TypeError, match="StopRule"):
        RewardEarlyStopping(STOP, patience=9)
    stopper, keeper, guard = RewardEarlyStopping(STOP), RewardCheckpoint(BEST), ProxyGuard(ALARM)
    trainer = fit(counter(), [watch(RISES_THEN_FALLS, "vl"), stopper, keeper, guard])
    assert trainer.global_step == stopper.stopped_step == 5
    assert len(keeper.best_k_models) == 3
    assert (stopper.rule.mode, keeper.rule.mode, guard.rule.proxy_mode) == ("min", "max", "max")
