"""Scorers without models for tests of the server, which child processes can import."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar

import numpy as np
import torch

from ctrlreward import Reward, Samples
from ctrlreward.scorers import CorpusFold, Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores

UP = ScoreSpec(higher_is_better=True, range=(0.0, np.inf))


class Letters(Scorer):
    """Letters of a text by its label; an unknown label raises, an empty text fails.

    The text "hold" waits until the test lets it go.
    """

    specs: ClassVar = {"letters": UP, "length": UP}

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds  # of each call
        self.calls: list[tuple[str, ...]] = []
        self.held = threading.Event()
        self.go = threading.Event()
        self.go.set()

    @property
    def corpus_folds(self) -> dict[str, CorpusFold]:
        return {"letters": CorpusFold(("letters", "length"), _share)}

    def required_columns(self, names: Any = None) -> dict[str, str]:
        return {"labels": "Letters"}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.calls.append(tuple(samples.texts))
        time.sleep(self.seconds)
        if "hold" in samples.texts:
            self.held.set()
            assert self.go.wait(60)
        if "broken" in samples.texts:
            raise RuntimeError("no memory for 'broken'")
        assert samples.labels is not None
        for i, label in enumerate(samples.labels):
            if len(label) != 1:
                raise ValueError(f"labels[{i}] = {label!r} is unknown: give one letter")
        pairs = zip(samples.texts, samples.labels, strict=True)
        counts = [text.count(label) if text else np.nan for text, label in pairs]
        lengths = [len(text) or np.nan for text in samples.texts]
        return {"letters": np.array(counts, float), "length": np.array(lengths, float)}


def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Rank(Scorer):
    """Share of the group's samples that are shorter."""

    specs: ClassVar = {"rank": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}
    pointwise = False

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        lengths = np.array([len(text) for text in samples.texts])
        return {"rank": (lengths[:, None] > lengths).mean(axis=1)}


def _share(letters: Scores, lengths: Scores) -> float:
    return float(np.nansum(letters) / np.nansum(lengths))


def letters_reward(seconds: float = 0.0) -> Reward:
    """Letters and length of a text, in calls that take some seconds."""
    letters = Letters(seconds)
    return Reward({"letters": (letters["letters"], 0.3), "length": (letters["length"], 0.1)})


class Place(Scorer):
    """Threads of PyTorch and process id of where a text is scored."""

    specs: ClassVar = {"threads": UP, "process": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        n = len(samples)
        return {
            "threads": np.full(n, torch.get_num_threads(), float),
            "process": np.full(n, os.getpid(), float),
        }


def placed_reward(seconds: float = 0.0) -> Reward:
    """Letters of a text, and where they were counted."""
    place = Place()
    return Reward(
        {
            "letters": Letters(seconds)["letters"],
            "threads": place["threads"],
            "process": place["process"],
        }
    )


def hanging_reward() -> Reward:
    """A reward that never scores "hold"."""
    letters = Letters()
    letters.go.clear()
    return Reward({"letters": letters["letters"]})


def unloadable_reward() -> Reward:
    """A reward whose model can't be loaded."""
    reward = letters_reward()

    def load() -> None:
        raise OSError("No such folder: models/rater")

    reward["letters"].scorer.load = load  # type: ignore[method-assign]
    return reward
