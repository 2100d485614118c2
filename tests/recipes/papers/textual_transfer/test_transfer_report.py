"""The report of a textual transfer run, whose checkpoints are told apart by their texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.demos.boring_classes import BoringDataModule, BoringModel
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from ctrlreward import Samples, Similarity, WordVectors
from ctrlreward.callbacks import GenerationScorer, HistoryLogger, RewardCheckpoint
from ctrlreward.recipes.papers.textual_transfer.transfer_bleu import (
    read_references,
    reference_bleu,
    reference_meteor,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_report import TransferReport
from ctrlreward.recipes.scoring_models.text_cnn import (
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    frequent_words,
    save_text_cnn,
)
from ctrlreward.recipes.style_transfer import ScoringModels, Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

THINGS = ("soup", "room", "bus", "play", "tea", "inn")
SENTENCES = {
    "sour": [f"the {thing} was so cold ." for thing in THINGS],
    "sweet": [f"the {thing} was so lovely ." for thing in THINGS],
}


PAIRS = [("the soup was so cold .", "The soup was so lovely."), ("the tea .", "the tea !")]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for style, sentences in SENTENCES.items():
        (tmp_path / style).write_text("\n".join(sentences))
    return {style: str(tmp_path / style) for style in SENTENCES}


@pytest.fixture
def references(tmp_path: Path) -> dict[str, str]:
    for style in SENTENCES:
        (tmp_path / f"{style}.pairs").write_text("\n".join(map("\t".join, PAIRS)))
    return {style: str(tmp_path / f"{style}.pairs") for style in SENTENCES}


@pytest.fixture
def scoring_models(tiny_llama: Callable[[str], str], tmp_path: Path) -> ScoringModels:
    words = frequent_words([text for side in SENTENCES.values() for text in side], 1)
    torch.manual_seed(0)
    folder = tmp_path / "judge"
    folder.mkdir()
    save_text_cnn(TextCNN(TextCNNConfig(words, ("sour", "sweet"), 8, (2,), 4, 0.0)), folder)
    random = np.random.default_rng(0)
    vectors = WordVectors({word: random.normal(size=4).tolist() for word in words})
    letters = tiny_llama(" abcdefghijklmnopqrstuvwxyz.")
    judge = TextCNNClassifier(str(folder))
    return ScoringModels(judge, vectors, letters, thresholds=(-8.0, -100.0, 1e6, -1e6))


class Restyler(BoringModel):
    """Ends each transfer with one of three words, by a weight that is the number of the epoch."""

    gm = (1.0, 3.0, 2.0)
    accuracy = (0.9, 0.6, 0.5)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("epoch", torch.tensor(0))

    def complete_samples(self, samples: Samples) -> list[str]:
        assert not self.training
        word = ("cold", "lovely", "so")[int(self.epoch)]
        return [f"{source[:-2]} {word} ." for source in samples.sources or ()]

    def on_validation_epoch_end(self) -> None:
        self.epoch.fill_(self.current_epoch)
        self.log("score/corpus/gm", self.gm[self.current_epoch])
        self.log("score/corpus/accuracy", self.accuracy[self.current_epoch])


def fit(folder: Path, report: TransferReport, *others: pl.Callback) -> Restyler:
    trainer = quiet_trainer(
        enable_checkpointing=True,
        max_epochs=3,
        limit_train_batches=2,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        logger=HistoryLogger(str(folder)),
        callbacks=[
            *others,
            RewardCheckpoint("score/corpus/gm", "max"),
            RewardCheckpoint("score/corpus/accuracy", "max"),
            report,
        ],
    )
    module = Restyler()
    trainer.fit(module, datamodule=BoringDataModule())
    return module


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_checkpoint_transfers_with_its_own_weights_and_is_scored(
    files: dict[str, str], references: dict[str, str], scoring_models: ScoringModels, tmp_path: Path
) -> None:
    run = tmp_path / "m2"
    report = TransferReport(str(run), Sentences(files, count=5), scoring_models, references)
    seen = Sentences(files, count=2, seed=3).prompts()
    content = {"content": Similarity(scoring_models.encoder)}
    module = fit(run, report, GenerationScorer(content, seen, name="watch"))

    assert int(module.epoch) == 2  # the module has its last weights again
    lines = rows(run / "transfers.jsonl")
    assert lines
    assert not {line["source"] for line in lines} & set(seen.sources or ())
    word = {"best_gm": "lovely", "best_accuracy": "cold", "last": "so"}
    for line in lines:
        for name in word:
            assert line["outputs"][name] == f"{line['source'][:-2]} {word[name]} ."
        assert line["outputs"]["copying"] == line["source"]
        assert line["label"] == ("sweet" if "cold" in line["source"] else "sour")

    test = json.loads((run / "test.json").read_text())
    assert test["sentences"] == len(lines)
    assert test["left_out"] == 10 - len(lines) > 0
    steps = {name: system["step"] for name, system in test["systems"].items() if "step" in system}
    assert steps == {"best_gm": 4, "best_accuracy": 2, "last": 6}
    quality = scoring_models.quality()
    sources, labels = ([line[key] for line in lines] for key in ("source", "label"))
    for name, figures in test["systems"].items():
        outputs = [line["outputs"][name] for line in lines]
        samples = Samples(outputs, sources=sources, labels=labels)
        corpus = quality.corpus(samples)
        for key in ("accuracy", "similarity", "perplexity", "gm"):
            assert figures[key] == pytest.approx(corpus[key]), (name, key)
        assert figures["failed"] == np.isnan(quality["gm"](samples)).sum()
        tokens = [line["scores"][name]["tokens"] for line in lines]
        assert tokens == [len(text) for text in samples.texts]  # the model reads characters
    quality.release()
    assert test["systems"]["copying"]["bleu"] != test["systems"]["best_gm"]["bleu"]
    assert "tok:none" in test["bleu_signature"]
    assert test["systems"]["copying"]["meteor"] != test["systems"]["best_gm"]["meteor"]

    # The references' sentences, in the order of their files, beside each checkpoint's output.
    translations = rows(run / "translations.jsonl")
    keys = ("label", "source", "reference")
    found = [tuple(translation[key] for key in keys) for translation in translations]
    assert found == [(label, *pair) for label in ("sweet", "sour") for pair in PAIRS]
    for translation in translations:
        stem = translation["source"][:-2]
        assert translation["outputs"] == {name: f"{stem} {word[name]} ." for name in word}
    (tmp_path / "m0").mkdir()
    plain = TransferReport(str(tmp_path / "m0"), Sentences(files, count=2), scoring_models)
    fit(tmp_path / "m0", plain)
    assert not (tmp_path / "m0" / "translations.jsonl").exists()


def test_what_is_missing_is_said_before_training(
    files: dict[str, str], scoring_models: ScoringModels, tmp_path: Path
) -> None:
    sentences = Sentences(files, count=2)
    content = {"c": Similarity(scoring_models.encoder)}
    everything = GenerationScorer(content, sentences.prompts(), name="w")
    report = TransferReport(str(tmp_path / "run"), sentences, scoring_models)
    with pytest.raises(MisconfigurationException, match="its sentences are used for selection"):
        fit(tmp_path / "run", report, everything)
    other = TransferReport(str(tmp_path / "run"), sentences, scoring_models, name="dev")
    with pytest.raises(MisconfigurationException, match=r"by dev/corpus/gm, but no callback keeps"):
        fit(tmp_path / "run", other)
    assert not (tmp_path / "run" / "test.json").exists()


# BLEU


def test_bleu_equals_its_definition() -> None:
    texts = ["the soup was so good .", "a bus came", "it 's the play of the year , is it ?"]
    human = ["The soup was so lovely.", "the bus came", "it's the play of the year, isn't it?"]
    bleu = reference_bleu(Samples(texts, references=human))
    # Matches of 1 to 4 words; 20 words, and 21 of the references, in which n't is a word.
    precisions = (18 / 20, 13 / 17, 9 / 14, 7 / 11)
    assert bleu.score == pytest.approx(100 * math.exp(1 - 21 / 20) * math.prod(precisions) ** 0.25)
    # No smoothing: without a common 4-gram it is 0, as by multi-bleu.
    assert reference_bleu(Samples(["a b c d"], references=["a b c e"])).score == 0


def test_the_untransferred_input_has_the_papers_bleu(data_dir: Path) -> None:
    folder = data_dir / "li2018"
    files = {s: str(folder / f"reference.{i}") for i, s in enumerate(("negative", "positive"))}
    prompts = read_references(files)
    assert len(prompts) == 1000
    assert prompts.labels == ("positive",) * 500 + ("negative",) * 500
    bleu = reference_bleu(prompts.replace(texts=prompts.sources))
    assert bleu.score == pytest.approx(31.4, abs=0.15)  # Table 6


def test_meteor_equals_its_formula() -> None:
    """One match is one word that both sides have once, so alignments need no search."""

    def meteor(matches: int, chunks: int, words: int, reference_words: int) -> float:
        precision, recall = matches / words, matches / reference_words
        mean = precision * recall / (0.9 * precision + 0.1 * recall)
        return 100 * mean * (1 - 0.5 * (chunks / matches) ** 3)

    for text, reference, expected in (
        ("the soup was so good .", "The soup was so lovely.", meteor(5, 2, 6, 6)),
        ("they loved the soup", "we love the soups", meteor(3, 1, 4, 4)),  # by stems
        ("a soup so cold was it", "it was a soup", meteor(4, 3, 6, 4)),
        ("a big soup", "one large stew", 0.0),  # no synonyms
        ("", "one large stew", 0.0),
    ):
        assert reference_meteor(Samples([text], references=[reference])) == pytest.approx(expected)
    pair = Samples(["a big soup", "tea"], references=["one large stew", "tea"])
    assert reference_meteor(pair) == pytest.approx(meteor(1, 1, 1, 1) / 2)
