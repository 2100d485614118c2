"""Classification of texts by descriptions of the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_bert
from transformers import AutoModel, AutoTokenizer, BertModel

from ctrlreward import Accuracy, Samples
from ctrlreward.recipes.controlled_generation.label_descriptions import LabelDescriptions

DESCRIPTIONS = {
    "food": ["the soup came cold", "a meal with friends", "it was great"],
    "travel": ["a lake in January"],
    "pets": ["a dog under the table", "my cat"],
}
TEXTS = ["The staff was friendly.", "A dog slept.", "In summary, we froze over there.", "Soup!"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("encoder"), BertModel)


def embedding(folder: str, text: str) -> Any:
    """Mean of the last hidden states, of length 1, by transformers alone."""
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[0]
    mean = states.mean(dim=0).double().numpy()
    return mean / np.linalg.norm(mean)


def test_probabilities_are_those_of_cosines_one_by_one(encoder: str) -> None:
    found = LabelDescriptions(DESCRIPTIONS, encoder).probabilities(TEXTS)
    for row, text in zip(found, TEXTS, strict=True):
        cosines = [
            np.mean([embedding(encoder, text) @ embedding(encoder, each) for each in sentences])
            for sentences in DESCRIPTIONS.values()
        ]
        shares = [np.exp(cosine / 0.05) for cosine in cosines]
        np.testing.assert_allclose(row, np.array(shares) / sum(shares), rtol=1e-4)
    assert found.dtype == np.float64


def test_as_the_classifier_of_an_attribute(encoder: str, caplog: pytest.LogCaptureFixture) -> None:
    model = LabelDescriptions(DESCRIPTIONS, encoder)
    assert model.labels == ("food", "travel", "pets")
    best = [model.labels[i] for i in model.probabilities(TEXTS).argmax(axis=1)]
    others = [next(label for label in model.labels if label != each) for each in best]
    labels = {"topic": [*best, *others, "food"], "mood": "glad"}
    samples = Samples([*TEXTS, *TEXTS, " "], labels=labels)
    accuracy = Accuracy(model, attribute="topic").score(samples)["accuracy"]
    np.testing.assert_array_equal(accuracy, [1.0] * 4 + [0.0] * 4 + [np.nan])
    assert "texts[8]" in caplog.text
    with pytest.raises(ValueError, match="'glad'"):
        Accuracy(model, attribute="mood").check_samples(samples)
