"""Scores of a server in Lightning: a monitored, and a rewarded, training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_module import Counting
from fakes import Letters
from lightning_choice import (
    Generation,
    GenerationScorer,
    HistoryLogger,
    LoRA,
    OptimizerConfig,
    PolicyTuner,
    pl,
    quiet_trainer,
)
from torch.utils.data import DataLoader

from ctrlreward import (
    Distinct,
    Perplexity,
    Reward,
    Samples,
    Similarity,
    TransferQuality,
    WordVectors,
)
from ctrlreward.files import JsonLog
from ctrlreward.jobs.training_job import build
from ctrlreward.placement import shared_device
from ctrlreward.scorers import Accuracy, CTRLEval
from ctrlreward.scorers.base import Scores, score
from ctrlreward.serving.remote_reward import RemoteReward

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = Samples(
    ["The soup", "The broth", "A cold soup"],
    labels=["positive", "negative", "positive"],
    sources=["broth", "soup", "broth soup"],
)


@pytest.fixture
def quality(tiny_causal: Callable[..., str]) -> TransferQuality:
    folder = tiny_causal("llama")
    style = Accuracy(CTRLEval(folder, task="sentiment", aspects="attribute_relevance"))
    vectors = WordVectors({"soup": [1, 0], "broth": [3, 4], "cold": [0, 1]})
    return TransferQuality(style, Similarity(vectors), Perplexity(folder))


class Writer(Counting):
    """Continues every prompt, by more broth from step to step."""

    batches = 2

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [f" was soup {'broth ' * round(self.weight.item())}" for _ in prompts]


def validated(scores: Any, folder: Path) -> tuple[list[dict[str, float]], dict[str, Scores]]:
    """Metrics of each validation of a short run, and the last scores by prompt."""
    scorer = GenerationScorer(scores, PROMPTS)
    history = HistoryLogger(str(folder))
    trainer = quiet_trainer(
        max_epochs=3, callbacks=[scorer], logger=history, num_sanity_val_steps=0
    )
    trainer.fit(Writer())
    log = JsonLog(history.path)
    rows = [{k: v for k, v in row.items() if k.startswith("score/")} for row in log.read()]
    return [row for row in rows if row], scorer.evidence


def test_a_monitored_run_logs_what_it_logs_in_process(
    quality: TransferQuality, live_server: Callable[..., Any], tmp_path: Path
) -> None:
    names = ("gm", "perplexity", "accuracy")
    local = Reward({**{name: quality[name] for name in names}, "variety": Distinct()["distinct_2"]})
    here, by_prompt = validated(local.components, tmp_path / "here")
    remote = RemoteReward(live_server(local).url)
    there, theirs_by_prompt = validated(remote.components, tmp_path / "there")
    assert len(set(by_prompt["score/variety"])) > 1  # a jackknife value each, not the group's
    assert theirs_by_prompt.keys() == {key for key in by_prompt if "/corpus/" not in key}
    for key, values in theirs_by_prompt.items():
        np.testing.assert_allclose(values, by_prompt[key], rtol=1e-6)
    assert len(there) == len(here) >= 3
    assert {"score/gm", "score/variety"} <= there[-1].keys()
    for ours, theirs in zip(here, there, strict=True):
        own = {key: value for key, value in ours.items() if "/corpus/" not in key}
        assert theirs == pytest.approx(own, rel=1e-6, nan_ok=True)


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
                if module.last_rollout is not None:
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
    assert len(here) >= 3
    assert len({str(totals) for totals in here}) > 1
    np.testing.assert_allclose(there, here)
    for one, other in zip(weights, same_weights, strict=True):
        torch.testing.assert_close(other, one)


def test_a_yaml_names_it_and_no_server_is_needed_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restores it after the command line sets it
    file = tmp_path / "train.yaml"
    file.write_text(
        """
model:
  class_path: ctrlreward.policy.PolicyTuner
  init_args:
    model: smollm2-135m
    reward:
      class_path: ctrlreward.serving.remote_reward.RemoteReward
      init_args:
        url: http://127.0.0.1:8700
        expect: {weights: {relevance: 1.0}}
        patience: 3
"""
    )
    reward = build(["--config", str(file)]).model.reward
    assert isinstance(reward, RemoteReward)
    assert reward.url == "http://127.0.0.1:8700"
    assert reward._connection.expect == {"weights": {"relevance": 1.0}}
    assert reward._connection.patience == 3
    other = build(["--config", str(file), "--model.reward.url=http://elsewhere:1"]).model.reward
    assert other.url == "http://elsewhere:1"
