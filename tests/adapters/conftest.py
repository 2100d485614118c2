"""Scorers that count letters, a plain function with the expected values, a server and a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from ctrlreward import Reward, Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

LETTERS = "abcdef"

CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def share_of(text: str, letter: str = "a") -> float:
    """Return the share of a letter; NaN if the text is empty or contains "f"."""
    return text.count(letter) / len(text) if text and "f" not in text else np.nan


class Letters(Scorer):
    """The share of "a" in a text (higher is better), and its length (lower is better)."""

    def __init__(self) -> None:
        self.scored: list[Samples] = []

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"share": ScoreSpec(True, (0.0, 1.0)), "length": ScoreSpec(False, (0.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        lengths = np.array([len(text) for text in samples.texts], dtype=np.float64)
        return {"share": np.array([share_of(text) for text in samples.texts]), "length": lengths}


class Kinds(Scorer):
    """Share of distinct texts, and the length of the first text: scores over several samples."""

    pointwise = False

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"kinds": ScoreSpec(True, (0.0, 1.0)), "first": ScoreSpec(True, (0.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        n = len(samples)
        kinds = len(set(samples.texts)) / n
        failing = np.array([np.nan if "f" in text else 1.0 for text in samples.texts])
        return {"kinds": kinds * failing, "first": np.full(n, len(samples.texts[0]))}


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def reward(letters: Letters) -> Reward:
    return Reward({"share": (letters["share"], 2.0), "length": (letters["length"], -0.125)})


@pytest.fixture
def kinds() -> Kinds:
    return Kinds()


@pytest.fixture
def train(tiny_llama: Callable[[str], str], tmp_path, one_thread) -> Callable[..., Any]:
    """Return a function that trains 3 steps of 8 completions of 2 prompts."""
    from trainer_runs import tiny_trl  # slow to import

    def run(reward_funcs: list[Any], chat: bool = False, **changes: Any) -> Any:
        rows = [
            {
                "prompt": [{"role": "user", "content": text}] if chat else text,
                "tone": tone,
                "gold": gold,
            }
            for text, tone, gold in (("ab", "glad", "1"), ("cd", "sad", "2"))
        ]
        settings = {
            "eval_strategy": "no",
            "learning_rate": 0.01,
            "max_completion_length": 4,
            "max_steps": 3,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
        }
        model, own = tiny_llama("abcdef"), {"reward_funcs": reward_funcs, "chat_template": CHAT}
        trainer = tiny_trl(model, tmp_path, rows, **settings | changes | own)
        trainer.train()
        return trainer

    return run


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """Return a function that serves a reward, with OpenRLHF's route if it gets options."""
    from serving.conftest import running

    from ctrlreward.serving.application import create_app
    from ctrlreward.serving.get_reward import GetReward

    with ExitStack() as servers:

        def start(reward: Reward, options: GetReward | None = None) -> Any:
            return servers.enter_context(running(create_app(reward, get_reward=options)))

        yield start
