from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from scoring_recipes import overrides, written
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward.command_line.config_files import with_extended
from ctrlreward.jobs.recipes import recipe_file
from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.scoring_models.language_model import (
    END,
    Corpus,
    LanguageModelTrainer,
    count_words,
)
from ctrlreward.scorers import Perplexity

CONFIG = recipe_file("language_model_yelp")
LINES = [f"the {thing} was {word} ." for thing in ("food", "soup", "staff", "room")
         for word in ("good", "bad", "cold", "kind", "small")]  # fmt: skip
RARE = ["we saw otters .", "we saw geese ."]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    """Files of training, test and further held-out sentences."""
    return {
        "train": [
            written(tmp_path / "one", [*LINES, "", LINES[0].upper(), "The  room was odd ."]),
            written(tmp_path / "two", [*RARE, LINES[1]]),
        ],
        "test": [written(tmp_path / "test", ["the room was odd .", ""])],
        "exclude": [written(tmp_path / "left_out", [f"{LINES[2]}\t{LINES[3]}"])],
    }


@pytest.mark.parametrize(
    ("plain", "tokenized"),
    [
        ("It didn't taste watered down.", "it did n't taste watered down ."),
        ("We're SURE: they'd can’t (won't) sell 1/2...", "we 're sure : they 'd ca n't ( wo n't ) "
         "sell 1/2 ..."),
        ("A so-so drive-thru -- $_num_ , ok?", "a so-so drive-thru -- $ _num_ , ok ?"),
    ],
)  # fmt: skip
def test_plain_text_is_split_as_tokenized_text(plain: str, tokenized: str) -> None:
    for text in (plain, tokenized):
        assert sorted(count_words([text]).elements()) == sorted(tokenized.split())


def log_probs(folder: Path, texts: list[str]) -> list[np.ndarray]:
    """Log-probability of each word and of the end, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    for text in texts:
        ids = tokenizer(f"{END}{text}{END}", return_tensors="pt").input_ids
        values = model(ids).logits[0, :-1].log_softmax(-1)
        rows.append(values.gather(1, ids[0, 1:, None])[:, 0].detach().double().numpy())
    return rows


def test_training_writes_the_best_epochs_model(
    files: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    small = {
        "model.init_args.min_count": 2,
        "model.init_args.width": 16,
        "model.init_args.heads": 2,
        "data.init_args.batch_size": 4,
        "trainer.precision": "32-true",
        "trainer.max_epochs": 3,
    }
    cli = build(with_extended(["--config", str(CONFIG), *overrides(tmp_path, **files, **small)]))
    cli.trainer.fit(cli.model, cli.datamodule)
    folder, data = tmp_path / "model", cli.datamodule.sentences

    rare = {word for word, count in count_words(data["train"]).items() if count < 2}
    best = torch.load(cli.trainer.checkpoint_callback.best_model_path, weights_only=True)
    expected = {name.removeprefix("model."): w for name, w in best["state_dict"].items()}
    expected["lm_head.bias"][1] -= math.log(len(rare))  # <unk> is one of them
    for name, weight in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
        assert torch.equal(weight, expected[name])

    report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert report["known_words"] == len(tokenizer) - 2
    assert report["rare_words"] == len(rare)
    for split in ("validation", "test"):
        rows = log_probs(folder, data[split])
        words = [word for text in data[split] for word in text.split()]
        assert report[split] == {
            "texts": len(data[split]),
            "perplexity": pytest.approx(np.exp(-np.concatenate([r[:-1] for r in rows]).mean())),
            "perplexity_with_ends": pytest.approx(np.exp(-np.concatenate(rows).mean())),
            "unknown_words": np.mean([word not in tokenizer.get_vocab() for word in words]),
        }
    # `val_loss` is the mean over words and ends, of sentences of several lengths, before <unk> is
    # shared.
    unshared = AutoModelForCausalLM.from_pretrained(folder)
    unshared.lm_head.bias.data[1] += math.log(len(rare))
    unshared.save_pretrained(folder)
    loss = -np.concatenate(log_probs(folder, data["validation"])).mean()
    assert cli.trainer.checkpoint_callback.best_model_score.item() == pytest.approx(loss, rel=1e-5)


def test_nonsense_is_less_likely_than_any_sentence(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    files["train"] = [written(tmp_path / "more", [*LINES, *(f"a b{i} c{i} ." for i in range(99))])]
    torch.manual_seed(0)
    folder, sizes = str(tmp_path / "model"), {"min_count": 2, "width": 16, "heads": 2}
    model = LanguageModelTrainer(folder, **sizes, learning_rate=0.01)
    trainer = quiet_trainer(max_epochs=4, default_root_dir=str(tmp_path))
    trainer.fit(model, Corpus(**files, batch_size=4))
    texts = [*LINES, "xq zzu kwv ffp"]
    values = Perplexity(str(tmp_path / "model")).score(texts)["perplexity"]
    assert values[-1] > 3 * values[:-1].max()
