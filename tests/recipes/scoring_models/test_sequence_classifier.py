from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scoring_recipes import overrides, written
from tiny_models import save_bert
from transformers import AutoTokenizer, BertForSequenceClassification

from ctrlreward import Accuracy
from ctrlreward.command_line.config_files import with_extended
from ctrlreward.jobs.recipes import recipe_file
from ctrlreward.jobs.training_job import build

CONFIG = recipe_file("classifier_yelp")
THINGS = ("food", "soup", "staff", "table", "dog", "lake", "bread", "waiter", "menu", "room")
PLACES = ("", " here", " in summer", " when we were there", " and the rest was not bad at all")
# The label is that of the word after "was", whatever follows.
WORDS = {
    "positive": ("good", "lovely", "great", "friendly"),
    "negative": ("awful", "rude", "cold", "terrible"),
}
TRAIN = {label: [f"the {thing} was {word}{place} ." for thing in THINGS for word in words
                 for place in PLACES] for label, words in WORDS.items()}  # fmt: skip
TEST = {label: [f"our {thing} was {word} ." for thing in THINGS for word in words[:2]]
        for label, words in WORDS.items()}  # fmt: skip


def test_training_writes_the_best_epochs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns, from a classifier of other labels, and `Accuracy` decides as the module does."""
    start = tmp_path / "start"
    start.mkdir()
    other = {0: "sports", 1: "science", 2: "business"}
    save_bert(start, BertForSequenceClassification, id2label=other, initializer_range=0.1)
    train = {label: written(tmp_path / label, [*TRAIN[label], *TEST[label]]) for label in WORDS}
    test = {label: written(tmp_path / f"{label}.test", TEST[label]) for label in WORDS}
    left_out = [f"{TRAIN['positive'][0]}\t{TRAIN['negative'][1].upper()}"]
    exclude = [written(tmp_path / "left_out", left_out)]
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    small = {
        "model.init_args.model": start,
        "model.init_args.learning_rate": 0.01,
        "data.init_args.batch_size": 20,
        "trainer.max_epochs": 9,
    }
    cli = build(
        with_extended(
            ["--config", str(CONFIG), *overrides(tmp_path, train, test, exclude, **small)]
        )
    )
    modes = []
    cli.model.training_step = lambda *batch, step=cli.model.training_step: (
        modes.append(all(part.training for part in cli.model.network.modules())) or step(*batch)
    )
    cli.trainer.fit(cli.model, cli.datamodule)
    assert modes
    assert all(modes)  # else dropout is off

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    accuracies = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
    assert max(accuracies) > 0.9  # by chance 0.5
    assert cli.trainer.checkpoint_callback.best_model_score == max(accuracies)
    folder = tmp_path / "model"
    best = torch.load(cli.trainer.checkpoint_callback.best_model_path, weights_only=True)
    for name, weight in BertForSequenceClassification.from_pretrained(folder).state_dict().items():
        assert torch.equal(weight, best["state_dict"][f"network.{name}"])

    # Groups of similar length decide as each sentence alone does, which `Accuracy` repeats.
    scorer = Accuracy(str(folder))
    assert scorer.labels == ("positive", "negative")  # in the order of the data
    sentences = cli.datamodule.sentences["test"]
    names = [cli.datamodule.labels[sentence.label] for sentence in sentences]
    scores = scorer.score([sentence.text for sentence in sentences], labels=names)["accuracy"]
    report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    assert report == {"test_accuracy": scores.mean(), "test_sentences": 40}
    module = cli.model.eval()
    losses, hits = zip(*(module._loss_and_hits([each]) for each in sentences), strict=True)
    assert scores.tolist() == [bool(hit) for hit in hits]
    loss, _ = module._loss_and_hits(sentences)
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-6)

    # The trained model's tokenizer does not truncate.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.backend_tokenizer.truncation is None


def test_the_judge_and_the_rewards_classifier_share_no_sentence(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a test sentence of Li et al. (2018) or a reference trained on, by any model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    sides = []
    for name in ("classifier", "text_cnn", "language_model"):
        data = build(
            with_extended(["--config", str(CONFIG.with_name(f"{name}_yelp.yaml"))])
        ).datamodule
        data.setup("fit")
        rows = data.sentences["train"] + data.sentences["validation"]
        sides.append({row if isinstance(row, str) else row.text for row in rows})
        assert len(data.sentences["test"]) == 1000
    held_out = set()
    for file in (data_dir / "li2018").glob("*.[01]"):
        for line in file.read_text("utf-8").splitlines():
            held_out |= {" ".join(column.lower().split()) for column in line.split("\t")}
    judge, reward, language_model = sides
    assert len(judge) > 50_000
    assert min(len(reward), len(language_model)) > 110_000
    assert judge.isdisjoint(reward)
    assert len(held_out) > 1900
    assert (judge | reward | language_model).isdisjoint(held_out)
