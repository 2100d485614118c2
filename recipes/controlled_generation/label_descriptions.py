"""A classifier by descriptions of the labels: the judge of topics and of tones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from scipy.special import softmax

from ctrlreward.models.classifier import Probabilities
from ctrlreward.models.encoder import Encoder
from ctrlreward.models.sharing import locked, shared_model

# Cosines of texts and descriptions differ by a few tenths.
_TEMPERATURE = 0.05


class LabelDescriptions:
    """Classifier by the label whose descriptions are closest to a text, for `Accuracy`.

    A probability is the softmax over the labels of the mean cosine of a text with the label's
    descriptions, divided by 0.05; it ranks texts but is not calibrated.

    Args:
        descriptions: Label → sentences or phrases that describe it, two labels or more.
        encoder: Local folder, Hugging Face id or short name of a sentence encoder.
        device: Device of the encoder.
    """

    def __init__(
        self,
        descriptions: Mapping[str, Sequence[str]],
        encoder: str = "minilm-l6",
        device: str = "cpu",
    ) -> None:
        if len(descriptions) < 2 or not all(descriptions.values()):
            raise ValueError("descriptions must have two labels or more, with sentences each")
        self.descriptions = descriptions
        self.encoder, self.device = encoder, device

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels, in the order of the descriptions."""
        return tuple(self.descriptions)

    @cached_property
    def _encoder(self) -> Encoder:
        return shared_model(Encoder, self.encoder, self.device, None, None, None)

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Return float64 of shape (texts, labels); NaN for a text without tokens."""
        with locked(self._encoder):
            sentences = self.descriptions.values()
            centres = [self._encoder.embed(list(each)).mean(axis=0) for each in sentences]
            scaled = self._encoder.embed(texts) @ np.stack(centres).T / _TEMPERATURE
        probabilities: Probabilities = softmax(scaled, axis=1)
        return probabilities
