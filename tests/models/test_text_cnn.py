from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn.functional import conv1d

from ctrlreward.models.text_cnn import TextCNN, TextCNNClassifier, TextCNNConfig, save_text_cnn
from ctrlreward.recipes.scoring_models.text_cnn import frequent_words

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("the", "food", "was", "good", "bad", "and", "slow")
LABELS = ("negative", "neutral", "positive")
TEXTS = [
    "The food was good",
    "bad",
    "the waiter was slow and the food was bad and the soup was worse",
    "",
    "good good good good good",
    "bad",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    config = TextCNNConfig(WORDS, LABELS, embedding_size=4, widths=(2, 3, 5), filters=6)
    path = tmp_path_factory.mktemp("text_cnn")
    save_text_cnn(TextCNN(config), path)
    return str(path)


def by_hand(folder: str, text: str) -> np.ndarray:
    """Kim's network from the saved weights with torch's own convolution, a text at a time."""
    weights = load_file(Path(folder) / "model.safetensors")
    ids = [WORDS.index(word) + 2 if word in WORDS else 1 for word in text.lower().split()]
    vectors = weights["embedding.weight"][ids + [0] * (5 - len(ids))].T
    features = []
    for i, width in enumerate((2, 3, 5)):
        kernel = weights[f"convolutions.{i}.weight"].view(6, 4, width)
        values = conv1d(vectors[None], kernel, weights[f"convolutions.{i}.bias"])
        features.append(values.relu().amax(dim=2)[0])
    logits = weights["output.weight"] @ torch.cat(features) + weights["output.bias"]
    return logits.softmax(dim=0).numpy()


@pytest.mark.parametrize("batch_tokens", [1, 20, 8192])
def test_equals_one_text_at_a_time(folder: str, batch_tokens: int) -> None:
    values = TextCNNClassifier(folder, batch_tokens=batch_tokens).probabilities(TEXTS)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, [by_hand(folder, text) for text in TEXTS], atol=1e-5)
    np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-9)
    assert values.std(axis=0).min() > 0.01  # the texts are told apart


def test_a_folder_gives_back_what_was_saved(folder: str) -> None:
    classifier = TextCNNClassifier(folder)
    assert classifier.labels == LABELS
    assert classifier.config.words == WORDS
    assert classifier.config.widths == (2, 3, 5)
    assert not classifier.model.training
    assert not any(weight.requires_grad for weight in classifier.model.parameters())


def test_equal_texts_are_read_once_under_the_budget(folder: str) -> None:
    classifier = TextCNNClassifier(folder, batch_tokens=16)
    shapes: list[torch.Size] = []
    classifier.model.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    classifier.probabilities(TEXTS * 10)
    assert sum(rows for rows, _ in shapes) == len(set(TEXTS))
    assert all(rows * width <= 16 or rows == 1 for rows, width in shapes)


def test_bfloat16_stays_close(folder: str) -> None:
    low = TextCNNClassifier(folder, dtype="bfloat16").probabilities(TEXTS)
    assert low.dtype == np.float64
    np.testing.assert_allclose(low, TextCNNClassifier(folder).probabilities(TEXTS), atol=0.02)


@given(st.lists(st.lists(st.sampled_from("abCd")).map(" ".join)), st.integers(1, 4))
def test_frequent_words_equal_brute_force(texts: list[str], least: int) -> None:
    counts = Counter(" ".join(texts).lower().split())
    words = frequent_words(texts, least)
    assert set(words) == {word for word, count in counts.items() if count >= least}
    assert [counts[w] for w in words] == sorted((counts[w] for w in words), reverse=True)


@pytest.mark.parametrize(
    "given",
    [
        {"words": ("a", "b", "a")},
        {"labels": ("no", "no")},
        {"labels": ("no",)},
        {"widths": ()},
        {"widths": (3, 0)},
        {"filters": 0},
    ],
)
def test_wrong_configurations(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        TextCNNConfig(**{"words": ("a",), "labels": LABELS, **given})


@pytest.mark.parametrize("content", ["[1]", "", {"model_type": "bert"}, {"stride": 2}])
def test_a_configuration_of_something_else(folder: str, tmp_path: Path, content: Any) -> None:
    if isinstance(content, dict):
        known = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        content = json.dumps(known | content)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="config"):
        TextCNNClassifier(str(tmp_path))


def words_added(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "words": [*WORDS, "new"]}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"half"),
        words_added,
    ],
)
def test_weights_that_do_not_belong_to_the_configuration(
    folder: str, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    spoil(copy)
    with pytest.raises(
        ValueError, match=r"copy.model\.safetensors is missing or does not match it"
    ):
        TextCNNClassifier(str(copy))
