"""Learning-rate schedules, and the number of updates that they need."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("schedule", "limits", "expected"),
    [
        ("constant", {"max_steps": 3}, [1, 1, 1]),
        ("constant_with_warmup", {"max_steps": 4}, [1 / 3, 2 / 3, 1, 1]),
        # Half a cosine over five updates.
        ("cosine", {"max_steps": 7}, [1 / 3, 2 / 3, 1, 0.9045, 0.6545, 0.3455, 0.0955]),
        ("linear", {"max_epochs": 2, "limit_train_batches": 3}, [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
        ("linear", {"max_epochs": 1, "accumulate_grad_batches": 2}, [1 / 3, 2 / 3, 1]),
    ],
)
def test_each_update_has_the_rate_of_its_schedule(tuner, train, schedule, limits, expected) -> None:
    peak = 1e-3
    tuned = tuner(lr_scheduler_type=schedule, warmup_steps=3, learning_rate=peak)
    rates, _ = train(tuned, **limits)
    assert rates == pytest.approx([peak * rate for rate in expected], abs=peak * 1e-4)


def test_a_stream_needs_a_number_of_steps(tuner, train) -> None:
    _, trainer = train(tuner(lr_scheduler_type="cosine"), Stream(), max_steps=3)
    assert trainer.global_step == 3
    with pytest.raises(MisconfigurationException, match="lr_scheduler_type"):
        train(tuner(lr_scheduler_type="cosine"), Stream(), max_epochs=1)
    train(tuner(), Stream(), max_epochs=1)  # a constant rate needs none
