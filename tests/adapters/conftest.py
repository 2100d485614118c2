"""Scorers that count letters, and a plain function with the expected values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ctrlreward import Reward, Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

LETTERS = "abcdef"


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

    def score(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        lengths = np.array([len(text) for text in samples.texts], dtype=np.float64)
        return {"share": np.array([share_of(text) for text in samples.texts]), "length": lengths}


class Kinds(Scorer):
    """Share of distinct texts, and the length of the first text: scores over several samples."""

    pointwise = False

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"kinds": ScoreSpec(True, (0.0, 1.0)), "first": ScoreSpec(True, (0.0, 1.0))}

    def score(self, samples: Samples) -> dict[str, Scores]:
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
