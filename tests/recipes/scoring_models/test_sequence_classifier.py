from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_choice import quiet_trainer
from scoring_recipes import overrides, written
from tiny_models import save_bert
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

from ctrlreward import Accuracy
from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.scoring_models.sequence_classifier import SequenceClassifierTrainer
from ctrlreward.recipes.scoring_models.text_cnn import Sentence, SentenceData

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "style_transfer" / "classifier_yelp.yaml"
THINGS = ("food", "soup", "staff", "table", "dog", "lake", "bread", "waiter", "menu", "room")
PLACES = ("", " here", " in summer", " when we were there", " and the rest was not bad at all")
# The label is that of the word after "was", whatever follows.
GOOD = [f"the {thing} was {word}{place} ." for thing in THINGS for word in
        ("good", "great", "lovely", "friendly") for place in PLACES]  # fmt: skip
BAD = [f"the {thing} was {word}{place} ." for thing in THINGS for word in
       ("cold", "awful", "terrible", "rude") for place in PLACES]  # fmt: skip
TEST_GOOD = [f"our {thing} was {word} ." for thing in THINGS for word in ("good", "lovely")]
TEST_BAD = [f"our {thing} was {word} ." for thing in THINGS for word in ("awful", "rude")]

Files = tuple[dict[str, str], dict[str, str], list[str]]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Training and test files of each label, and a file of sentences to leave out.

    The training files hold the test sentences, too.
    """
    train, test = {}, {}
    for label, lines, held_out in (("positive", GOOD, TEST_GOOD), ("negative", BAD, TEST_BAD)):
        train[label] = written(tmp_path / f"train.{label}", [*lines, *held_out])
        test[label] = written(tmp_path / f"test.{label}", held_out)
    return train, test, [written(tmp_path / "left_out", [f"{GOOD[0]}\t{BAD[1].upper()}"])]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny BERT with seeded random weights, without a classification head."""
    return save_bert(tmp_path_factory.mktemp("bert"), BertModel, initializer_range=0.1)


class Watched(SequenceClassifierTrainer):
    """Trainer that notes the longest row, and trains in training mode."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)

    def training_step(self, batch: list[Sentence], batch_idx: int) -> torch.Tensor:
        assert all(part.training for part in self.network.modules())  # else dropout is off
        return super().training_step(batch, batch_idx)


def fitted(
    files: Files, folder: Path, encoder: str, trainer: dict[str, Any] | None = None, **options: Any
) -> Watched:
    """Train in `folder`; the trainer's options are those of a short run by default."""
    torch.manual_seed(0)
    model = Watched(str(folder), encoder, **options)
    settings: dict[str, Any] = {"max_epochs": 1, **(trainer or {})}
    quiet_trainer(default_root_dir=str(folder.parent), num_sanity_val_steps=0, **settings).fit(
        model, SentenceData(*files, validation_share=0.2, batch_size=20)
    )
    return model


SMALL: dict[str, object] = {
    "model.init_args.learning_rate": 0.01,
    "data.init_args.batch_size": 20,
    "trainer.max_epochs": 9,
}


def test_training_writes_the_best_epochs_folder(
    files: Files, tmp_path: Path, encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns, and `Accuracy` decides as the module does on each sentence."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    options = overrides(tmp_path, *files, **{**SMALL, "model.init_args.model": encoder})
    cli = build(["--config", str(CONFIG), *options])
    cli.trainer.fit(cli.model, cli.datamodule)

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"train_loss", "val_loss", "val_accuracy"} <= set().union(*rows)
    accuracies = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
    assert max(accuracies) > 0.9  # by chance 0.5
    assert cli.trainer.checkpoint_callback.best_model_score == max(accuracies)

    folder = tmp_path / "model"
    best = torch.load(cli.trainer.checkpoint_callback.best_model_path, weights_only=True)
    loaded = BertForSequenceClassification.from_pretrained(folder).state_dict()
    for name, weight in loaded.items():
        assert torch.equal(weight, best["state_dict"][f"network.{name}"])

    scorer = Accuracy(str(folder))
    assert scorer.labels == ("positive", "negative")  # in the order of the data
    sentences = cli.datamodule.sentences["validation"] + cli.datamodule.sentences["test"]
    names = [cli.datamodule.labels[sentence.label] for sentence in sentences]
    scores = scorer.score([sentence.text for sentence in sentences], labels=names)["accuracy"]
    module = cli.model.eval()
    own = [bool(module._loss_and_hits([sentence])[1]) for sentence in sentences]
    assert scores.tolist() == own
    assert scores.mean() > 0.9

    report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    tested = scores[-len(cli.datamodule.sentences["test"]) :]
    assert report == {"test_accuracy": tested.mean(), "test_sentences": 40}


def test_loss_and_decisions_do_not_depend_on_the_groups(
    files: Files, tmp_path: Path, encoder: str
) -> None:
    """Groups of similar length give the loss of each sentence alone; long ones are truncated."""
    module = fitted(files, tmp_path / "model", encoder, max_tokens=9).eval()
    batch = [Sentence(text, i % 2) for i, text in enumerate([*BAD[:25], *GOOD[:25]])]
    loss, hits = module._loss_and_hits(batch)
    alone = [module._loss_and_hits([sentence]) for sentence in batch]
    expected = torch.stack([one for one, _ in alone]).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert int(hits.sum()) == sum(int(hit) for _, hit in alone)

    # Not so by the trained model's tokenizer.
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    original = AutoTokenizer.from_pretrained(encoder)
    assert len(tokenizer(BAD[-1]).input_ids) == len(original(BAD[-1]).input_ids) > 9
    assert tokenizer.backend_tokenizer.truncation is None


def test_a_classifier_of_other_labels_is_a_start(files: Files, tmp_path: Path) -> None:
    labels = {0: "sports", 1: "science", 2: "business"}
    start = tmp_path / "start"
    start.mkdir()
    save_bert(start, BertForSequenceClassification, id2label=labels)
    fitted(files, tmp_path / "model", str(start))
    assert Accuracy(str(tmp_path / "model")).labels == ("positive", "negative")


def test_a_folder_that_holds_something_else_is_refused(
    files: Files, tmp_path: Path, encoder: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    written(folder / "thesis.txt", ["years of work"])
    with pytest.raises(ValueError, match="folder"):
        fitted(files, folder, encoder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


# The configuration for Yelp


def test_the_judge_and_the_rewards_classifier_share_no_sentence(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a test sentence of Li et al. (2018) or a reference trained on, by any model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    sides = []
    for name in ("classifier", "text_cnn", "language_model"):
        data = build(["--config", str(CONFIG.with_name(f"{name}_yelp.yaml"))]).datamodule
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
