"""Sentiment by a word list with rules (VADER), independent of neural rewards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from ctrlreward.arguments import some_of
from ctrlreward.extras import import_extra
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

AspectName: TypeAlias = Literal["polarity", "accuracy"]

SPECS = {"polarity": ScoreSpec(True, (-1.0, 1.0)), "accuracy": ScoreSpec(True, (0.0, 1.0))}

# Texts of less polarity than this are neutral, the threshold of the VADER paper.
_NEUTRAL = 0.05


class LexiconSentiment(Scorer):
    """Sentiment of an English text by VADER (Hutto & Gilbert, 2014), a lexicon with rules.

    - `polarity`: VADER's compound score, -1 (negative) to 1 (positive); 0 for a text without a
      word of the lexicon.
    - `accuracy`: 1.0 if the polarity has the sign of the target label and is at least 0.05 in
      size, else 0.0; higher is better. Needs `labels`.

    Args:
        aspects: Score or scores to compute; `"all"` leaves out the accuracy without labels.
        labels: Names of the negative and of the positive label.
        attribute: Attribute whose target is read, for samples with labels of several attributes.

    Examples:
        >>> scorer = LexiconSentiment()
        >>> scorer["polarity"](["The soup was lovely.", "Awful, cold soup.", "It is noon."])
        array([ 0.5859, -0.4588,  0.    ])
    """

    def __init__(
        self,
        aspects: AspectName | Literal["all"] | Sequence[AspectName] = "all",
        labels: Sequence[str] = ("negative", "positive"),
        attribute: str | None = None,
    ) -> None:
        self.optional = aspects == "all"
        self.aspects = some_of("aspects", aspects, SPECS)
        if isinstance(labels, str) or len(labels) != 2 or labels[0] == labels[1]:
            raise ValueError(f"labels must be a negative and a positive one, got {labels!r}")
        self.labels = tuple(labels)
        self.attribute = attribute

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {aspect: SPECS[aspect] for aspect in self.aspects}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        aspects = self.aspects if names is None else names
        return ("labels",) if "accuracy" in aspects else ()

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        if "accuracy" in (self.aspects if names is None else names):
            samples.label_indices(self.labels, "LexiconSentiment", self.attribute)

    @cached_property
    def analyzer(self) -> Any:
        return import_extra("vader", "LexiconSentiment").SentimentIntensityAnalyzer()

    def load(self) -> None:
        _ = self.analyzer

    def score_samples(self, samples: Samples, names: Collection[str] = ()) -> dict[str, Scores]:
        polarity = np.array([self.analyzer.polarity_scores(t)["compound"] for t in samples.texts])
        scores = {"polarity": polarity}
        if "accuracy" in names:
            targets = samples.label_indices(self.labels, "LexiconSentiment", self.attribute)
            scores["accuracy"] = polarity * np.array([-1.0, 1.0])[targets] >= _NEUTRAL
        return scores
