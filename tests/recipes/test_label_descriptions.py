"""Classification of texts by descriptions of the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from ctrlreward import Accuracy
from ctrlreward.recipes.controlled_generation.label_descriptions import LabelDescriptions

DESCRIPTIONS = {
    "food": ["the soup came cold", "a meal with friends", "it was great"],
    "travel": ["a lake in January"],
    "pets": ["a dog under the table", "my cat"],
}
TEXTS = ["The staff was friendly.", "A dog slept.", "In summary, we froze over there.", "Soup!"]


def embedding(folder: str, text: str) -> Any:
    """Mean of the last hidden states, of length 1, by transformers alone."""
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[0]
    mean = states.mean(dim=0).double().numpy()
    return mean / np.linalg.norm(mean)


def test_probabilities_are_those_of_cosines_one_by_one(encoder: str) -> None:
    model = LabelDescriptions(DESCRIPTIONS, encoder)
    probabilities = model.probabilities(TEXTS)
    for row, text in zip(probabilities, TEXTS, strict=True):
        cosines = [
            np.mean([embedding(encoder, text) @ embedding(encoder, each) for each in sentences])
            for sentences in DESCRIPTIONS.values()
        ]
        shares = [np.exp(cosine / 0.05) for cosine in cosines]
        np.testing.assert_allclose(row, np.array(shares) / sum(shares), rtol=1e-4)
    best = [model.labels[i] for i in probabilities.argmax(axis=1)]
    labels = [*best, *(next(label for label in model.labels if label != each) for each in best)]
    accuracy = Accuracy(model).score(TEXTS * 2, labels=labels)["accuracy"]
    np.testing.assert_array_equal(accuracy, [1.0] * 4 + [0.0] * 4)
