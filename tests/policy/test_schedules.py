"""Learning-rate schedules, and the number of updates that they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning_choice import (
    MisconfigurationException,
    PolicyTuner,
    pl,
    quiet_trainer,
)
from torch.utils.data import DataLoader, IterableDataset
from tuner_records import BATCH

from ctrlreward import Samples


class Stream(IterableDataset[Samples]):
    """Batches without a length."""

    def __iter__(self) -> Iterator[Samples]:
        yield from [BATCH] * 5


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., tuple[list[float], pl.Trainer]]:
    """Return a function that trains on 5 batches per epoch; it returns the rate of each update."""

    def run(module: PolicyTuner, data: Any = None, **limits: Any) -> tuple[list[float], pl.Trainer]:
        rates: list[float] = []

        class Recorder(pl.Callback):
            def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
                rates.append(optimizer.param_groups[0]["lr"])

        trainer = quiet_trainer(default_root_dir=tmp_path, callbacks=[Recorder()], **limits)
        loader = DataLoader(data or [BATCH] * 5, batch_size=None)
        trainer.fit(module, loader)
        return rates, trainer

    return run


def rate(schedule: str, step: int, warmup: int, steps: int) -> float:
    """Return the share of the learning rate of an update, by the definition of each schedule."""
    if schedule == "constant":
        return 1.0
    warmup = max(1, warmup)
    if step + 1 < warmup:
        return (step + 1) / warmup
    if schedule == "constant_with_warmup":
        return 1.0
    progress = min(1.0, (step + 1 - warmup) / (steps + 1 - warmup))
    return 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2


@pytest.mark.lightning
@pytest.mark.parametrize(
    ("schedule", "limits", "updates"),
    [
        ("constant", {"max_steps": 4}, 4),
        ("constant_with_warmup", {"max_steps": 4}, 4),
        ("cosine", {"max_steps": 7}, 7),
        ("linear", {"max_epochs": 2, "limit_train_batches": 3}, 6),
        ("linear", {"max_epochs": 1, "accumulate_grad_batches": 2}, 3),
    ],
)
def test_each_update_has_the_rate_of_its_schedule(tuner, train, schedule, limits, updates) -> None:
    module = tuner(lr_scheduler_type=schedule, warmup_steps=3, learning_rate=1.0e-3)
    rates, _ = train(module, **limits)
    assert rates == pytest.approx([1e-3 * rate(schedule, k, 3, updates) for k in range(updates)])


def test_a_stream_needs_a_number_of_steps(tuner, train) -> None:
    _, trainer = train(tuner(lr_scheduler_type="cosine"), Stream(), max_steps=3)
    assert trainer.global_step == 3
    with pytest.raises(MisconfigurationException, match="lr_scheduler_type"):
        train(tuner(lr_scheduler_type="cosine"), Stream(), max_epochs=1)
    train(tuner(), Stream(), max_epochs=1)  # a constant rate needs none
