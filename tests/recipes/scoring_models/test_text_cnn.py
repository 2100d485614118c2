from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from safetensors.torch import load_file
from scoring_recipes import written
from torch.nn.functional import conv1d

from ctrlreward import Accuracy
from ctrlreward.recipes.scoring_models.text_cnn import (
    Sentence,
    SentenceData,
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    TextCNNTrainer,
    save_text_cnn,
)

GOOD = [f"the {thing} was {word} ." for thing in ("food", "soup", "staff") for word in
        ("good", "great", "lovely", "kind")]  # fmt: skip
BAD = [f"the {thing} was {word} ." for thing in ("food", "soup", "staff") for word in
       ("bad", "awful", "cold", "rude")]  # fmt: skip
TEST = {"negative": ["the lake was awful ."], "positive": ["the lake was lovely .", "we sailed ."]}


@pytest.fixture
def files(tmp_path: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Training and test files of each label, and a file of sentences to leave out."""
    train = {
        "negative": written(tmp_path / "train.0", [*BAD, *BAD, "", "the lake was awful ."]),
        "positive": written(tmp_path / "train.1", [*GOOD, "The lake  was lovely ."]),
    }
    test = {label: written(tmp_path / f"test.{label}", lines) for label, lines in TEST.items()}
    return train, test, [written(tmp_path / "left_out", [f"{GOOD[0]}\t{BAD[1]}"])]


def test_variants_and_labels_of_a_sentence_are_in_one_split(tmp_path: Path) -> None:
    """Of each sentence three variants, and both labels."""
    lines = [line for text in GOOD for line in (text, text.upper(), text.replace(" ", "  "))]
    train, test = written(tmp_path / "train", lines), written(tmp_path / "test", ["other"])
    both = [dict.fromkeys(("no", "yes"), file) for file in (train, test)]
    data = SentenceData(*both, validation_share=0.5)
    data.setup("fit")
    texts = {}
    for split in ("train", "validation"):
        sentences = data.sentences[split]
        texts[split] = {sentence.text for sentence in sentences}
        assert len(texts[split]) == 6
        assert sorted(sentences) == sorted(Sentence(t, k) for t in texts[split] for k in (0, 1))
    assert texts["train"].isdisjoint(texts["validation"])


def trained(files: tuple, folder: Path, **options: Any) -> TextCNNTrainer:
    model = TextCNNTrainer(str(folder), min_count=1, embedding_size=4, widths=[1], filters=2)
    quiet_trainer(max_epochs=1, default_root_dir=str(folder.parent), **options).fit(
        model, SentenceData(*files)
    )
    return model


def test_a_model_takes_the_place_of_an_earlier_one_as_a_whole(
    files: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    trained(files, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert TextCNNClassifier(str(folder)).labels == ("negative", "positive")
    texts, labels = zip(
        *((t, i) for i, side in enumerate(TEST.values()) for t in side), strict=True
    )
    right = TextCNNClassifier(str(folder)).probabilities(texts).argmax(axis=1) == labels
    report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    assert report == {"test_accuracy": right.mean(), "test_sentences": 3}
    assert before.keys() == {"config.json", "model.safetensors", "evaluation.json"}
    trained(files, folder, fast_dev_run=True)
    with monkeypatch.context() as broken:
        broken.setattr(TextCNNClassifier, "probabilities", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(files, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"model"}
    model = trained(files, folder).model
    for name, weight in TextCNNClassifier(str(folder)).network.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    (folder / "evaluation.json").rename(folder / "thesis.txt")
    with pytest.raises(ValueError, match="folder"):
        trained(files, folder)
    assert (folder / "thesis.txt").exists()


WORDS = ("the", "food", "was", "good", "bad", "and", "slow")
TEXTS = [
    "The food was good",
    "bad",
    "the waiter was slow and the food was bad and the soup was worse",
    "",
    "good good good good good",
    "bad",
]


def by_hand(folder: Path, text: str) -> np.ndarray:
    """Kim's network from the saved weights with torch's own convolution, a text at a time."""
    weights = load_file(folder / "model.safetensors")
    ids = [WORDS.index(word) + 2 if word in WORDS else 1 for word in text.lower().split()]
    vectors = weights["embedding.weight"][ids + [0] * (5 - len(ids))].T
    features = []
    for i, width in enumerate((2, 3, 5)):
        kernel = weights[f"convolutions.{i}.weight"].view(6, 4, width)
        values = conv1d(vectors[None], kernel, weights[f"convolutions.{i}.bias"])
        features.append(values.relu().amax(dim=2)[0])
    logits = weights["output.weight"] @ torch.cat(features) + weights["output.bias"]
    return logits.softmax(dim=0).numpy()


@pytest.mark.parametrize("words", [1, 20, 8192])
def test_equals_one_text_at_a_time(
    tmp_path: Path, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    labels = ("negative", "neutral", "positive")
    save_text_cnn(TextCNN(TextCNNConfig(WORDS, labels, 4, (2, 3, 5), 6)), tmp_path)
    monkeypatch.setattr("ctrlreward.recipes.scoring_models.text_cnn._BATCH_WORDS", words)
    values = TextCNNClassifier(str(tmp_path)).probabilities(TEXTS)
    np.testing.assert_allclose(values, [by_hand(tmp_path, text) for text in TEXTS], atol=1e-5)
    assert values.std(axis=0).min() > 0.01  # the texts are told apart


def test_a_scorer_is_built_before_its_model_is_trained(tmp_path: Path) -> None:
    """As callbacks are, whose models the data module trains first."""
    Accuracy(TextCNNClassifier(str(tmp_path / "absent")))
