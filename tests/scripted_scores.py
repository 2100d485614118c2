"""Scorers without a model: scores written in advance, and scores of the text alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ctrlreward import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec


class Scripted(Scorer):
    """Scores by step of training and by row, whatever the texts."""

    pointwise = False

    def __init__(self, values: Callable[[str, int], list[float]], trainer: Any, mode: str) -> None:
        self.values, self.trainer, self.mode = values, trainer, mode

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            "a": ScoreSpec(self.mode == "max", (-np.inf, np.inf)),
            "b": ScoreSpec(True, (-np.inf, np.inf)),
        }

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        step = self.trainer.state.global_step
        return {key: np.array(self.values(key, step)[: len(samples)]) for key in "ab"}


class Share(Scorer):
    """Score of 1 for the first texts of a call, of 0 for the others."""

    pointwise = False
    specs = dict.fromkeys(["share"], ScoreSpec(True, (0.0, 1.0)))

    def __init__(self, first: int) -> None:
        self.first = first

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return {"share": np.array([float(i < self.first) for i in range(len(samples))])}


class ByText(Scorer):
    """A value that depends on the text alone, and the texts of each call."""

    pointwise = True
    specs = {"value": ScoreSpec(True, (0.0, 1.0))}  # noqa: RUF012

    def __init__(self) -> None:
        self.scored: list[list[str]] = []

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(list(samples.texts))
        return {"value": np.array([zlib.crc32(text.encode()) / 2**32 for text in samples.texts])}
