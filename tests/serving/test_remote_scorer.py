"""Scores of a server in Lightning: a monitored, and a rewarded, training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_module import Counting
from fakes import Letters, Rank
from lightning_choice import (
    Generation,
    GenerationScorer,
    LoRA,
    OptimizerConfig,
    PolicyTuner,
    pl,
    quiet_trainer,
)
from torch.utils.data import DataLoader

from ctrlreward import Reward, Samples
from ctrlreward.jobs.training_job import build
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


def test_a_policy_learns_from_it_as_from_the_same_reward_in_process(
    tiny_llama: Callable[[str], str], live_server: Callable[..., Any], tmp_path: Path
) -> None:
    def rewarded(reward: Reward) -> tuple[list[list[float]], list[torch.Tensor]]:
        totals: list[list[float]] = []

        class Recorder(pl.Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
                totals.append(module.last_rollout[1].total.tolist())

        pl.seed_everything(0)
        module = PolicyTuner(
            tiny_llama("abcdef"),
            reward,
            generation=Generation(num_generations=4, max_completion_length=6),
            optimizer=OptimizerConfig(learning_rate=0.01),
            lora=LoRA(r=4),
        )
        trainer = quiet_trainer(max_steps=4, callbacks=[Recorder()], default_root_dir=tmp_path)
        batch = Samples(["ab", "cd"], labels=["a", "c"])
        trainer.fit(module, DataLoader([batch] * 8, batch_size=None))  # type: ignore[arg-type]
        return totals, [p.detach().clone() for p in module.parameters() if p.requires_grad]

    letters = Letters()
    local = Reward({"letters": (letters["letters"], 0.3), "length": (letters["length"], 0.1)})
    here, weights = rewarded(local)
    there, same_weights = rewarded(RemoteReward(live_server(local).url))
    assert len(here) == 4
    assert len({str(totals) for totals in here}) > 1
    np.testing.assert_allclose(there, here)
    for one, other in zip(weights, same_weights, strict=True):
        torch.testing.assert_close(other, one)


FILE = """
model:
  class_path: ctrlreward.policy.PolicyTuner
  init_args:
    model: smollm2-135m
    reward:
      class_path: ctrlreward.serving.remote_reward.RemoteReward
      init_args: {url: "http://127.0.0.1:8700", patience: 3}
"""


def test_a_yaml_names_it_and_no_server_is_needed_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restores it after the command line sets it
    file = tmp_path / "train.yaml"
    file.write_text(FILE)
    reward = build(["--config", str(file)]).model.reward
    assert isinstance(reward, RemoteReward)
    assert reward.url == "http://127.0.0.1:8700"
    other = build(["--config", str(file), "--model.reward.url=http://elsewhere:1"]).model.reward
    assert other.url == "http://elsewhere:1"
