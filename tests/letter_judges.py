"""Judges without models for tests of `ctrlreward rescore`, of a text and of a group of texts."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from typing import ClassVar

import numpy as np

from ctrlreward import Samples
from ctrlreward.scorers.base import CorpusFold, Scorer, Scores, ScoreSpec

SHARE = ScoreSpec(higher_is_better=True, range=(0.0, 1.0))


class Share(Scorer):
    """Share of some letters in a text; fails without a letter. Kills the process at a text."""

    specs: ClassVar = {"share": SHARE}
    calls: ClassVar[list[int]] = []  # texts of each call, of all instances

    def __init__(self, letters: str = "aeiou", column: str = "texts") -> None:
        self.letters, self.column = letters, column

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        return {"share": CorpusFold(("count", "length"), _ratio)}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        return {self.column: "Share"}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        Share.calls.append(len(samples))
        if os.environ.get("KILL_AT", "\n") in samples.texts:
            os.kill(os.getpid(), signal.SIGKILL)
        lengths = [sum(map(str.isalpha, text)) or np.nan for text in samples.texts]
        counts = [sum(c in self.letters for c in text) for text in samples.texts]
        length, count = np.array(lengths, float), np.array(counts, float)
        return {"share": count / length, "count": count, "length": length}


class Variety(Scorer):
    """Different characters of a group's texts over all of its characters."""

    specs: ClassVar = {"variety": SHARE}
    pointwise = False
    of_groups = True

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        groups = samples.groups or ("",) * len(samples)
        joined = dict.fromkeys(groups, "")
        for group, text in zip(groups, samples.texts, strict=True):
            joined[group] += text
        values = {group: len(set(text)) / max(1, len(text)) for group, text in joined.items()}
        return {"variety": np.array([values[group] for group in groups])}


def _ratio(counts: Scores, lengths: Scores) -> float:
    return float(np.nansum(counts) / np.nansum(lengths))
