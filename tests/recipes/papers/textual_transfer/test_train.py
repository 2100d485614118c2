"""The LightningModule of textual transfer: what a step changes, what a resumed run repeats."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from ctrlreward import Samples
from ctrlreward.callbacks import HistoryLogger
from ctrlreward.files import read_jsonl
from ctrlreward.recipes.papers.textual_transfer.data import EOS, GO, PAD, TransferSentences
from ctrlreward.recipes.papers.textual_transfer.train import (
    StyleLanguageModel,
    StyleModels,
    TextualTransfer,
)

M7 = {"paraphrase": 0.2, "cycle": 5.0, "language": 1e-3, "critic": 1.0}
SIZES = {"embedding_size": 6, "style_size": 3, "content_size": 9, "filters": 4}
THINGS = ("food", "soup", "staff", "room", "view", "music")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bad = [f"the {thing} was {word} ." for thing in THINGS for word in ("bad", "cold", "too slow")]
    good = [f"the {thing} is {word} !" for thing in THINGS for word in ("good", "so very kind")]
    (tmp_path / "bad").write_text("\n".join(bad))
    (tmp_path / "good").write_text("\n".join(good))
    pairs = [f"the {thing} is good !\twe like the {thing} ." for thing in THINGS]
    (tmp_path / "pairs").write_text("\n".join(pairs))
    return tmp_path


def data_of(folder: Path, **options: Any) -> TransferSentences:
    files = {"bad": str(folder / "bad"), "good": str(folder / "good")}
    return TransferSentences(files, **{"min_count": 1, "batch_size": 4, **options})


def model_of(folder: Path, kind: Any = TextualTransfer, **options: Any) -> Any:
    models = StyleModels(embedding_size=5, width=6, epochs=1)
    settings = {"lambdas": M7, "style_models": models, "poor_discriminator": None, **SIZES}
    settings["paraphrases"] = str(folder / "pairs")
    return kind(**{**settings, **options})


def trained(
    model: TextualTransfer, data: TransferSentences, checkpoint: Path | None = None, **options: Any
) -> pl.Trainer:
    torch.manual_seed(0)
    trainer = quiet_trainer(**{"max_steps": 1, "limit_val_batches": 0, **options})
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    return trainer


# What a step changes


class Recorded(TextualTransfer):
    """Module that notes which parameters each step changes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.before: dict[str, torch.Tensor] = {}
        self.changed: list[set[str]] = []

    def manual_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.before:
            self.on_train_batch_end()
        self.before = {name: p.detach().clone() for name, p in self.named_parameters()}
        super().manual_backward(loss, *args, **kwargs)

    def on_train_batch_end(self, *args: Any) -> None:
        now = {name: p.detach() for name, p in self.named_parameters()}
        self.changed.append({n for n in now if not torch.equal(now[n], self.before[n])})


def test_a_step_of_m7_updates_the_parameters_that_the_paper_says(folder: Path) -> None:
    model = model_of(folder, Recorded)
    trained(model, data_of(folder))
    names = {name for name, _ in model.named_parameters()}
    judges = {name for name in names if name.startswith(("discriminators", "critics"))}
    assert {name.split(".")[0] for name in judges} == {"discriminators", "critics"}
    writer = {name for name in names if name.startswith("networks")}
    assert judges | writer == names  # language models are no parameters of the module
    first, second = model.changed
    # Biases of a critic may cancel out in eq. 7.
    assert {name for name in judges if name.endswith("weight")} <= first <= judges
    assert second == writer


def test_poor_discriminators_leave_reconstruction_alone(folder: Path) -> None:
    seen = {}
    for bound in (0.0, None):
        trainer = trained(model_of(folder, poor_discriminator=bound), data_of(folder))
        seen[bound] = {name for name in trainer.callback_metrics if name.startswith("loss/")}
        poor = trainer.callback_metrics["loss/poor_discriminators"]
        assert poor == (1.0 if bound == 0.0 else 0.0)
    left_out = {f"loss/{name}" for name in ("adversarial", *M7)}
    assert seen[None] - seen[0.0] == left_out


def test_the_weight_of_the_second_pair_halves_each_epoch(folder: Path) -> None:
    weights = []

    class Watched(TextualTransfer):
        def on_train_batch_end(self, *_: Any) -> None:
            logged = {k: float(v) for k, v in self.trainer.callback_metrics.items()}
            parts = [logged[f"loss/{name}"] for name in ("reconstruction", "adversarial", "critic")]
            weights.append((logged["loss/total"] - parts[0] - parts[1]) / parts[2])

    model = Watched(lambdas={"critic": 1.0}, poor_discriminator=None, **SIZES)
    data = data_of(folder, batch_size=99)  # a batch an epoch
    trained(model, data, max_steps=-1, max_epochs=3)
    assert weights == pytest.approx([1, 0.5, 0.25], rel=1e-3)


# Transfers


def test_transfers_are_those_of_single_sentences(folder: Path) -> None:
    model = model_of(folder, lambdas={})
    trained(model, data_of(folder), max_steps=-1, max_epochs=5)
    sources = ["the food was bad .", "the", "the room is so very kind !", "", "zebras"]
    labels = ["good", "good", "bad", "bad", "good"]
    samples = Samples([""] * 5, sources=sources, labels=labels)
    together = model.complete_samples(samples)
    assert together == [model.complete_samples(samples[i : i + 1])[0] for i in range(5)]
    assert not any("<" in text for text in together)
    model.train()
    assert model.complete_samples(samples) == together  # without dropout


# Checkpoints


def losses_of(folder: Path) -> dict[int, dict[str, float]]:
    return {
        row["step"]: {name: value for name, value in row.items() if name.startswith("loss/")}
        for row in read_jsonl(folder / "metrics.jsonl")
        if "loss/total" in row
    }


def test_a_run_of_m7_that_is_cut_off_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    """Cut off in the middle of the second epoch; losses of all steps agree within 1e-6."""

    class CutOff(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 7:
                raise InterruptedError

    def run(name: str, *callbacks: pl.Callback) -> TextualTransfer:
        model, last = model_of(folder), folder / name / "last.ckpt"
        keep = ModelCheckpoint(folder / name, save_last=True, save_top_k=0, every_n_train_steps=2)
        trained(
            model,
            data_of(folder),
            last if last.exists() else None,
            max_steps=-1,
            max_epochs=4,
            val_check_interval=0.5,
            limit_val_batches=1.0,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_checkpointing=True,
            logger=HistoryLogger(str(folder / name)),
            callbacks=[keep, *callbacks],
        )
        return model

    model = run("whole")
    with pytest.raises(InterruptedError):
        run("cut", CutOff())
    steps_before = set(losses_of(folder / "cut"))
    run("cut")
    whole, cut = losses_of(folder / "whole"), losses_of(folder / "cut")
    assert max(steps_before) < max(whole)
    assert whole.keys() == cut.keys()
    assert len(whole) == 4 * 5
    for step, losses in whole.items():
        assert losses == pytest.approx(cut[step], abs=1e-6), step
    # A transfer needs nothing but the checkpoint.
    loaded = TextualTransfer.load_from_checkpoint(folder / "whole" / "last.ckpt", weights_only=True)
    samples = Samples([""] * 2, sources=["the food was bad .", "the soup"], labels=["good", "bad"])
    assert loaded.complete_samples(samples) == model.complete_samples(samples)


# Language models of the styles


def test_log_probabilities_are_those_of_a_plain_loop() -> None:
    torch.manual_seed(0)
    model = StyleLanguageModel(9, 4, 6, 0.5).eval()
    rows = [[4, 5, 6], [7], [5, 5, 8, 4, 6]]
    longest = max(map(len, rows)) + 1
    inputs = torch.tensor([[GO, *row] + [PAD] * (longest - 1 - len(row)) for row in rows])
    with torch.no_grad():
        values = model(inputs)
    assert values.shape == (3, longest, 9)
    total, count = 0.0, 0
    for row, value in zip(rows, values.numpy(), strict=True):
        state, expected = torch.zeros(1, 6), []
        for token in (GO, *row):
            _, state = model.cell(model.embedding.weight[token][None], state)
            expected.append((model.output(state[0])).log_softmax(0).detach().numpy())
        np.testing.assert_allclose(value[: len(row) + 1], expected, atol=1e-5)
        total -= sum(expected[i][token] for i, token in enumerate([*row, EOS]))
        count += len(row) + 1
    loss, terms = model.loss(rows)
    assert terms == count
    assert loss.item() == pytest.approx(total, rel=1e-6)
    assert model.perplexity(rows, batch_size=2) == pytest.approx(math.exp(total / count), rel=1e-6)


def test_each_language_model_knows_its_style(data_dir: Path) -> None:
    files = {s: str(data_dir / "yelp_shen" / f"sentiment.test.{s}") for s in "01"}
    data = TransferSentences(files, words=(1, 12), count=2000, max_words=500)
    data.setup("fit")
    before = torch.get_rng_state()
    models = StyleModels(embedding_size=24, width=32, dropout=0.1, epochs=2).trained(data)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(w.requires_grad for m in models for w in m.parameters())
    for own in (0, 1):
        lines = (data_dir / "yelp_shen" / f"sentiment.dev.{own}").read_text().splitlines()[:500]
        rows = data.tokenizer(lines).input_ids
        assert models[own].perplexity(rows) < 0.8 * models[1 - own].perplexity(rows)
