"""Whether a classifier finds the wanted label in a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ctrlreward.models.classifier import LabelProbabilities, load_classifier
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.present import present, spread


class Accuracy(Scorer):
    """A classifier's verdict on the wanted label of each text. Needs `labels`.

    - `accuracy`: 1.0 where the classifier decides for the wanted label, else 0.0; higher is
      better, and the mean over samples is the accuracy of the generator.
    - `label_probability`: the probability of the wanted label, 0 to 1; higher is better.

    Args:
        classifier: Local folder or hub id of a sequence classifier, folder of a `TextCNN` that
            the text_cnn recipe wrote, or whatever has `labels` and `probabilities`, as `CTRLEval`
            does where no classifier is trained.
        device: Where a classifier that is named runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass; None picks by device.
    """

    def __init__(
        self,
        classifier: str | LabelProbabilities,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.given = classifier
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Decision and probability."""
        return {
            "accuracy": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)),
            "label_probability": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)),
        }

    @cached_property
    def classifier(self) -> LabelProbabilities:
        """The classifier, loaded at its first use where it was named."""
        if isinstance(self.given, str):
            return load_classifier(self.given, self.device, self.dtype, self.batch_tokens)
        return self.given

    def score(self, samples: Samples) -> dict[str, Scores]:
        """Both scores, float64 of shape (n,); NaN, with a warning, where a text is empty.

        Raises:
            ValueError: The column `labels` is absent, or the classifier doesn't know a label.
        """
        wanted = self._columns(samples.require("labels", "Accuracy"))
        kept = present("accuracy", texts=samples.texts)
        if not kept:
            return {name: np.full(len(samples), np.nan) for name in self.specs}
        probabilities = self.classifier.probabilities([samples.texts[i] for i in kept])
        chosen = probabilities[np.arange(len(kept)), wanted[kept]]
        decided = (probabilities.argmax(axis=1) == wanted[kept]).astype(np.float64)
        decided[np.isnan(chosen)] = np.nan
        return {
            "accuracy": spread(decided, kept, len(samples)),
            "label_probability": spread(chosen, kept, len(samples)),
        }

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of the classifier; where an object that is no scorer runs is not known."""
        if isinstance(self.given, Scorer):
            return self.given.devices
        return (self.device,) if isinstance(self.given, str) else ()

    def load(self) -> None:
        """Loads the classifier now."""
        if isinstance(self.given, Scorer):
            self.given.load()
        _ = self.classifier

    def to(self, device: str) -> None:
        """Has the classifier loaded on the device at its next use.

        One that was given as an object and is no scorer stays where it is.
        """
        self.release()
        self.device = device
        if isinstance(self.given, Scorer):
            self.given.to(device)

    def release(self) -> None:
        """Frees the classifier, also one that is a scorer itself; `score` loads it again."""
        self.__dict__.pop("classifier", None)
        if isinstance(self.given, Scorer):
            self.given.release()

    def _columns(self, labels: Sequence[str]) -> np.ndarray:
        """The classifier's column for each label."""
        known = self.classifier.labels
        for i, label in enumerate(labels):
            if label not in known:
                raise ValueError(
                    f"labels[{i}] = {label!r} is no label of the classifier, which knows "
                    f"{', '.join(known)}: use one of them, or name its outputs with "
                    "Classifier(..., labels=[...])"
                )
        return np.array([known.index(label) for label in labels], dtype=np.int64)
