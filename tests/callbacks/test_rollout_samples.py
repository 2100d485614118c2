from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_choice import MisconfigurationException, RolloutSamples, pl

from ctrlreward import RewardBatch, Samples
from ctrlreward.scorers.records import read_scored_file


@pytest.fixture
def writer(counter: type) -> type[pl.LightningModule]:
    class Writer(counter):  # type: ignore[misc, valid-type]
        """Module with three texts per step, the second one without a reward.

        The first step has no rollout, as with overlapped rewards.
        """

        last_rollout: tuple[Samples, RewardBatch] | None = None

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if batch_idx > 0:
                total = np.array([float(batch_idx), np.nan, 0.5])
                samples = Samples([f"text {i} of {batch_idx}" for i in range(3)])
                reasons = {"v": [f"why {i}" for i in range(3)]}
                rewards = RewardBatch(total, {"v": 2 * total}, np.isnan(total), 0.0, reasons)
                self.last_rollout = (samples, rewards)
            return super().training_step(batch, batch_idx)

    return Writer


@pytest.mark.lightning
def test_every_nth_rollout_is_written(fit: Callable[..., pl.Trainer], writer, tmp_path) -> None:
    fit(writer(), [RolloutSamples(every_n_batches=3)], max_steps=8)
    folder = tmp_path / "samples" / "rollout"
    assert sorted(path.name for path in folder.iterdir()) == [
        "step=000004.jsonl",
        "step=000007.jsonl",
    ]
    samples, scores, _, reasons, _ = read_scored_file(folder / "step=000007.jsonl")
    assert samples.texts == ("text 0 of 6", "text 1 of 6", "text 2 of 6")
    np.testing.assert_array_equal(scores["total"], [6.0, np.nan, 0.5])
    np.testing.assert_array_equal(scores["v"], [12.0, np.nan, 1.0])
    assert reasons == {"v": ["why 0", "why 1", "why 2"]}


def test_fast_dev_run_writes_nothing(fit, writer, tmp_path: Path) -> None:
    fit(writer(), [RolloutSamples(1)], fast_dev_run=True)
    assert not (tmp_path / "samples").exists()


def test_a_module_without_rollouts_is_named(fit, counter) -> None:
    with pytest.raises(MisconfigurationException, match="Counter"):
        fit(counter(), [RolloutSamples()])
