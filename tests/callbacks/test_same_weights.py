"""One decision per set of weights, on values of this validation, for one run at a time."""

from __future__ import annotations

import pytest
from lightning_choice import (
    GenerationScorer,
    RewardCheckpoint,
    RewardEarlyStopping,
)

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:the checkpoint of")


def test_the_same_weights_are_validated_once(fit, counter, curve, held_out, tmp_path) -> None:
    # Four batches per optimizer step, a validation after each: steps 0, 0, 0, 1, 1, 1, 1, 2, ...
    rise = curve([0.5, 0.4, 0.3, 0.2, 0.1])
    scorer = GenerationScorer({"a": rise["value"]}, held_out)
    stop = RewardEarlyStopping("score/a", patience=2)
    fit(
        counter(),
        [scorer, stop, RewardCheckpoint("score/a", dirpath=tmp_path / "kept")],
        max_steps=4,
        accumulate_grad_batches=4,
        val_check_interval=1,
    )
    assert (stop.stopped_step, scorer.validations) == (2, 3)  # 0.5, then two without improvement
