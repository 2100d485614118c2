"""Scores of a server in Lightning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from counting_module import Counting
from fakes import Letters, Rank
from lightning_choice import GenerationScorer, pl, quiet_trainer

from ctrlreward import Reward, Samples
from ctrlreward.placement import shared_device
from ctrlreward.scorers.base import score
from ctrlreward.serving.remote_reward import RemoteReward

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = Samples(["The soup", "The broth", "A cold soup"], labels=["o", "b", "c"])


class Writer(Counting):
    """Continues every prompt, by more broth from step to step."""

    batches = 2

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [f" was soup {'broth ' * round(self.weight.item())}" for _ in prompts]


def test_a_monitored_run_logs_what_it_logs_in_process(live_server: Callable[..., Any]) -> None:
    def validated(scores: Any) -> tuple[list[dict[str, float]], dict[str, list[float]]]:
        scorer, rows = GenerationScorer(scores, PROMPTS), []

        class Recorder(pl.Callback):
            def on_validation_end(self, trainer: Any, module: Any) -> None:
                rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})

        trainer = quiet_trainer(
            max_epochs=3, callbacks=[scorer, Recorder()], num_sanity_val_steps=0
        )
        trainer.fit(Writer())
        return rows, {key: values.tolist() for key, values in scorer.evidence.items()}

    letters = Letters()
    reward = Reward({"letters": letters["letters"], "rank": Rank()})
    here, by_prompt = validated(reward.components)
    there, theirs_by_prompt = validated(RemoteReward(live_server(reward).url).components)
    assert theirs_by_prompt == {k: v for k, v in by_prompt.items() if "/corpus/" not in k}
    assert len({*by_prompt["score/rank"]}) > 1
    assert len(there) == len(here) >= 3
    assert {"score/letters", "score/rank"} <= there[-1].keys()
    for ours, theirs in zip(here, there, strict=True):
        own = {k: v for k, v in ours.items() if "/corpus/" not in k and k.startswith("score/")}
        assert own == {k: v for k, v in theirs.items() if k.startswith("score/")}


def test_components_of_one_scorer_are_one_request(live_server: Callable[..., Any]) -> None:
    letters = Letters()
    local = Reward({"letters": letters["letters"], "length": letters["length"]})
    remote = RemoteReward(live_server(local).url)
    assert remote["letters"].scorer is remote["length"].scorer
    found = score(remote.components, Samples(["soup", "soup", ""], labels=["o", "o", "o"])).scores
    np.testing.assert_array_equal(found["letters"], [1, 1, np.nan])
    np.testing.assert_array_equal(found["length"], [4, 4, np.nan])
    assert letters.calls == [("soup",)]  # once, and the repeated text not again
    devices = {name: component.scorer.devices for name, component in remote.components.items()}
    assert shared_device(devices, "cuda", [0, 1], 2) is None  # it takes none of the training
    remote.release()
