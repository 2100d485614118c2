from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from safetensors.torch import load_file
from scoring_recipes import overrides, written
from torch.nn.functional import conv1d

from ctrlreward import Accuracy
from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.scoring_models.text_cnn import (
    Sentence,
    SentenceData,
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    TextCNNTrainer,
    save_text_cnn,
)

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "style_transfer" / "text_cnn_yelp.yaml"
GOOD = [f"the {thing} was {word} ." for thing in ("food", "soup", "staff") for word in
        ("good", "great", "lovely", "kind")]  # fmt: skip
BAD = [f"the {thing} was {word} ." for thing in ("food", "soup", "staff") for word in
       ("bad", "awful", "cold", "rude")]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Training and test files of each label, and a file of sentences to leave out."""
    train = {
        "negative": written(tmp_path / "train.0", [*BAD, *BAD, "", "the lake was awful ."]),
        "positive": written(tmp_path / "train.1", [*GOOD, "The lake  was lovely ."]),
    }
    test = {
        "negative": written(tmp_path / "test.0", ["the lake was awful ."]),
        "positive": written(tmp_path / "test.1", ["the lake was lovely ."]),
    }
    return train, test, [written(tmp_path / "left_out", [f"{GOOD[0]}\t{BAD[1]}"])]


# The data


def test_held_out_sentences_are_not_trained_on(files: tuple) -> None:
    train, test, exclude = files
    data = SentenceData(train, test, exclude, validation_share=0.25)
    data.setup("fit")
    kept = data.sentences["train"] + data.sentences["validation"]
    expected = [Sentence(text, 0) for text in BAD if text != BAD[1]]
    expected += [Sentence(text, 1) for text in GOOD[1:]]
    assert sorted(kept) == sorted(expected)  # each once
    assert len(data.sentences["validation"]) == round(0.25 * len(kept))
    assert data.sentences["test"] == [("the lake was awful .", 0), ("the lake was lovely .", 1)]


def data_of(folder: Path, lines: dict[str, list[str]], **options: Any) -> SentenceData:
    """Return the data of some lines by label."""
    train = {label: written(folder / label, lines[label]) for label in lines}
    test = {label: written(folder / f"test.{label}", ["other"]) for label in lines}
    data = SentenceData(train, test, **options)
    data.setup("fit")
    return data


@pytest.mark.parametrize("seed", range(2))
def test_variants_and_labels_of_a_sentence_are_in_one_split(tmp_path: Path, seed: int) -> None:
    """Of each sentence three variants, and both labels."""
    lines = [line for text in GOOD for line in (text, text.upper(), text.replace(" ", "  "))]
    data = data_of(tmp_path, {"no": lines, "yes": lines}, validation_share=0.5, seed=seed)
    sides = {split: data.sentences[split] for split in ("train", "validation")}
    for sentences in sides.values():
        texts = {sentence.text for sentence in sentences}
        assert len(texts) == 6
        assert sorted(sentences) == sorted(Sentence(text, k) for text in texts for k in (0, 1))
    assert {s.text for s in sides["train"]}.isdisjoint(s.text for s in sides["validation"])


# The training


SMALL: dict[str, object] = {
    "model.init_args.min_count": 1,
    "model.init_args.filters": 8,
    "model.init_args.learning_rate": 0.05,
    "data.init_args.batch_size": 6,
}


def test_training_writes_the_best_epochs_folder(
    files: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    cli = build(["--config", str(CONFIG), *overrides(tmp_path, *files, **SMALL)])
    cli.trainer.fit(cli.model, cli.datamodule)

    folder = tmp_path / "model"
    classifier = TextCNNClassifier(str(folder))
    assert classifier.labels == ("negative", "positive")
    assert "lovely" in classifier.network.config.words
    best = torch.load(cli.trainer.checkpoint_callback.best_model_path, weights_only=True)
    for name, weight in classifier.network.state_dict().items():
        assert torch.equal(weight, best["state_dict"][f"model.{name}"])

    report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    negative, positive = classifier.probabilities(["the lake was awful .", "the lake was lovely ."])
    right = [negative.argmax() == 0, positive.argmax() == 1]
    assert report == {"test_accuracy": sum(right) / 2, "test_sentences": 2}
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"val_loss", "val_accuracy"} <= set().union(*rows)


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
    written_names = {path.name for path in folder.iterdir()}
    assert written_names == {"config.json", "model.safetensors", "evaluation.json"}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
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


def test_a_few_thousand_sentences_teach_the_sentiment(data_dir: Path, tmp_path: Path) -> None:
    def first(label: int) -> str:
        file = data_dir / "yelp_shen" / f"sentiment.test.{label}"
        return written(tmp_path / str(label), file.read_text("utf-8").splitlines()[:3000])

    test = {n: str(data_dir / "li2018" / f"sentiment.test.{i}") for i, n in enumerate(["-", "+"])}
    data = SentenceData({"-": first(0), "+": first(1)}, test, batch_size=64)
    model = TextCNNTrainer(
        str(tmp_path / "model"), embedding_size=32, filters=16, learning_rate=0.01
    )
    torch.manual_seed(0)
    # Without checkpoints, so that the last epoch counts as the best.
    quiet_trainer(max_epochs=2, default_root_dir=str(tmp_path)).fit(model, data)
    report = json.loads((tmp_path / "model" / "evaluation.json").read_text("utf-8"))
    assert report["test_sentences"] == 1000
    assert report["test_accuracy"] > 0.75  # by chance 0.5


# The network


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


@pytest.mark.parametrize("words", [1, 20, 8192])
def test_equals_one_text_at_a_time(
    folder: str, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctrlreward.recipes.scoring_models.text_cnn._BATCH_WORDS", words)
    values = TextCNNClassifier(folder).probabilities(TEXTS)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, [by_hand(folder, text) for text in TEXTS], atol=1e-5)
    np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-9)
    assert values.std(axis=0).min() > 0.01  # the texts are told apart


def test_a_scorer_is_built_before_its_model_is_trained(tmp_path: Path) -> None:
    """As callbacks are, whose models the data module trains first."""
    Accuracy(TextCNNClassifier(str(tmp_path / "absent")))
