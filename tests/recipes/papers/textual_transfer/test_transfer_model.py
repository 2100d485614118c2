"""The LightningModule of textual transfer: what a step changes, what a resumed run repeats."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_choice import quiet_trainer
from torch.nn.functional import log_softmax
from warm_python import run_warm

from ctrlreward import Samples
from ctrlreward.recipes.papers.textual_transfer import objective
from ctrlreward.recipes.papers.textual_transfer.batches import TransferBatch, TransferSentences
from ctrlreward.recipes.papers.textual_transfer.paraphrases import Paraphrases
from ctrlreward.recipes.papers.textual_transfer.style_models import StyleModels
from ctrlreward.recipes.papers.textual_transfer.transfer_model import TextualTransfer
from ctrlreward.recipes.papers.textual_transfer.vocabulary import EOS, GO, PAD, UNK

M7 = {"paraphrase": 0.2, "cycle": 5.0, "language": 1e-3, "critic": 1.0}
SIZES = {"embedding_size": 6, "style_size": 3, "content_size": 9, "filters": 4}
THINGS = ("food", "soup", "staff", "room", "view", "music")

pytestmark = pytest.mark.usefixtures("one_thread")


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
    pairs = Paraphrases(str(folder / "pairs"))
    return TransferSentences(files, min_count=1, batch_size=4, paraphrases=pairs, **options)


def model_of(folder: Path, **options: Any) -> TextualTransfer:
    small = {"embedding_size": 5, "width": 6, "epochs": 1, "validation_share": 0.2}
    models = StyleModels(str(folder / "style_models"), **small)
    settings = {"lambdas": M7, "style_models": models, "poor_discriminator": None, **SIZES}
    return TextualTransfer(**{**settings, **options})


def trained(model: TextualTransfer, data: TransferSentences, **options: Any) -> pl.Trainer:
    torch.manual_seed(0)
    trainer = quiet_trainer(**{"max_steps": 1, "limit_val_batches": 0, **options})
    trainer.fit(model, data)
    return trainer


# What a step changes


class Recorded(TextualTransfer):
    """Module that notes which parameters each backward pass and each step reaches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reached: list[set[str]] = []
        self.changed: list[set[str]] = []

    def manual_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        for parameter in self.parameters():
            parameter.grad = None
        self.before = {name: p.detach().clone() for name, p in self.named_parameters()}
        super().manual_backward(loss, *args, **kwargs)
        if self.reached:
            self._note_changes()
        self.reached.append(
            {n for n, p in self.named_parameters() if p.grad is not None and p.grad.any()}
        )
        self.at_backward = self.before

    def _note_changes(self) -> None:
        self.changed.append(
            {
                name
                for name, p in self.named_parameters()
                if not torch.equal(p.detach(), self.at_backward[name])
            }
        )

    def on_train_batch_end(self, *args: Any) -> None:
        self._note_changes()


def test_a_step_of_m7_updates_the_parameters_that_the_paper_says(folder: Path) -> None:
    options = {"lambdas": M7, "poor_discriminator": None, **SIZES}
    models = StyleModels(str(folder / "style_models"), width=6, epochs=1, validation_share=0.2)
    model = Recorded(style_models=models, **options)
    trained(model, data_of(folder))
    names = {name for name, _ in model.named_parameters()}
    judges = {name for name in names if name.startswith(("discriminators", "critics"))}
    assert {name.split(".")[0] for name in judges} == {"discriminators", "critics"}
    writer = {name for name in names if name.startswith("networks")}
    assert judges | writer == names  # language models are no parameters of the module
    for passes in (model.reached, model.changed):
        first, second = passes
        # Biases of a critic may cancel out in eq. 7.
        assert {name for name in judges if name.endswith("weight")} <= first <= judges
        assert second == writer


def batch_and_model(folder: Path) -> tuple[TransferBatch, TextualTransfer]:
    model, data = model_of(folder, lambdas={"cycle": 1.0}), data_of(folder)
    trained(model, data)
    return next(iter(data.train_dataloader())), model.eval()


def test_no_gradient_flows_through_the_argmax_of_the_first_transfer(folder: Path) -> None:
    """The cycle's gradient is that of a transfer that is given as plain words."""
    batch, model = batch_and_model(folder)
    networks = model.networks

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        networks.zero_grad()
        loss.backward()
        grads = [p.grad for p in networks.parameters()]
        return [torch.zeros(1) if grad is None else grad.clone() for grad in grads]

    def states() -> objective.States:
        return objective.unfold(networks, batch, temperature=0)

    whole = gradients(objective.transfer_losses(networks, batch, states())["cycle"])
    # The twin: words found beforehand, no graph behind them.
    steps = batch.words.shape[1] + 1
    written, counts = networks.write(1 - batch.styles, states().content.detach(), steps)
    total = torch.zeros(())
    for i in range(len(batch.words)):
        style = int(batch.styles[i])
        count = max(1, int(counts[i]))
        content = networks.encode(
            written[i : i + 1, :count], torch.tensor([count]), torch.tensor([1 - style])
        )
        words = batch.words[i, : batch.lengths[i]][None]
        logits = networks.generator.logits(
            networks.unfold(words, torch.tensor([style]), content)[0, 1:]
        )
        targets = [*words[0].tolist(), EOS]
        chosen = log_softmax(logits, dim=-1)[torch.arange(len(targets)), targets]
        total = total - chosen.sum() / (len(batch.words) // 2)
    for ours, theirs in zip(whole, gradients(total), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_poor_discriminators_leave_reconstruction_alone(folder: Path) -> None:
    seen = {}
    for bound in (0.0, None):
        trainer = trained(model_of(folder, poor_discriminator=bound), data_of(folder))
        seen[bound] = {name for name in trainer.callback_metrics if name.startswith("loss/")}
        poor = trainer.callback_metrics["loss/poor_discriminators"]
        assert poor == (1.0 if bound == 0.0 else 0.0)
    left_out = {f"loss/{name}" for name in ("adversarial", *M7)}
    assert seen[None] - seen[0.0] == left_out


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_weight_of_the_second_pair_halves_each_epoch(folder: Path, epochs: int) -> None:
    weights = []

    class Watched(TextualTransfer):
        def on_train_epoch_end(self) -> None:
            weights.append(self._weight("critic"))

    model = Watched(lambdas={"critic": 1.0}, **SIZES)
    trained(model, data_of(folder), max_steps=-1, max_epochs=epochs)
    assert weights == [2.0**-epoch for epoch in range(epochs)]


@pytest.mark.parametrize("fails", [False, True])
def test_denormal_numbers_are_flushed_in_training_alone(folder: Path, fails: bool) -> None:
    tiny, seen = torch.tensor(1e-39), []

    class Watched(TextualTransfer):
        def on_train_batch_end(self, *args: Any) -> None:
            seen.append(float(tiny * 0.5))
            if fails:
                raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError) if fails else nullcontext():
        trained(Watched(**SIZES), data_of(folder))
    assert seen == [0.0]
    assert float(tiny * 0.5) > 0


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


def test_a_transfer_ends_with_the_first_end_and_holds_no_reserved_word(folder: Path) -> None:
    """Against a loop over single steps."""
    batch, model = batch_and_model(folder)
    networks, vectors = model.networks, model.networks.embedding.weight
    content = networks.encode(batch.words, batch.lengths, batch.styles)
    ids, counts = networks.write(1 - batch.styles, content, 7)
    for i in range(len(content)):
        state = networks.generator.start(1 - batch.styles[i : i + 1], content[i : i + 1])
        word, expected = GO, []
        for _ in range(7):
            _, last = networks.generator.cell(vectors[word][None, None], state[None])
            state = last[0]
            logits = networks.generator.logits(state)[0]
            logits[[PAD, GO, UNK]] = -torch.inf
            word = int(logits.argmax())
            if word == EOS:
                break
            expected.append(word)
        assert ids[i, : counts[i]].tolist() == expected
        assert set(ids[i, counts[i] :].tolist()) <= {EOS}


def test_an_unknown_label_is_named(folder: Path) -> None:
    _, model = batch_and_model(folder)
    with pytest.raises(ValueError, match=r"label 'fine' is not a style of the model, .* bad, good"):
        model.complete_samples(Samples([""], sources=["the food"], labels=["fine"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lambdas": {"cycl": 5.0}},
            "a key of lambdas must be one of .*, got 'cycl' .*did you mean 'cycle'",
        ),
        ({"lambdas": {"cycle": -1.0}}, "'cycle'.* must be 0 or more, got -1.0"),
    ],
)
def test_wrong_losses_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextualTransfer(**options)


def test_language_needs_models(folder: Path) -> None:
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="style_models"):
        trained(TextualTransfer({"language": 1e-3}, **SIZES), data_of(folder))


def test_paraphrase_needs_pairs(folder: Path) -> None:
    files = {"bad": str(folder / "bad"), "good": str(folder / "good")}
    data = TransferSentences(files, min_count=1, batch_size=4)
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="paraphrases"):
        trained(TextualTransfer({"paraphrase": 0.2}, **SIZES), data)


# Checkpoints


def test_a_checkpoint_is_all_that_a_transfer_needs(folder: Path) -> None:
    model = model_of(folder)
    trainer = trained(model, data_of(folder), max_steps=4)
    trainer.save_checkpoint(folder / "model.ckpt")
    loaded = TextualTransfer.load_from_checkpoint(folder / "model.ckpt", weights_only=True)
    samples = Samples([""] * 2, sources=["the food was bad .", "the soup"], labels=["good", "bad"])
    assert loaded.complete_samples(samples) == model.complete_samples(samples)
    assert loaded.styles == ("bad", "good")


def test_a_checkpoint_of_other_words_is_refused(folder: Path) -> None:
    trainer = trained(model_of(folder, lambdas={}), data_of(folder))
    trainer.save_checkpoint(folder / "model.ckpt")
    other, data = model_of(folder, lambdas={}), data_of(folder, max_words=5)
    trainer = pl.Trainer(max_steps=2, accelerator="cpu", logger=False, limit_val_batches=0)
    with pytest.raises(ValueError, match="differ in vocabulary or styles"):
        trainer.fit(other, data, ckpt_path=folder / "model.ckpt")


SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_transfer_model as shared
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from ctrlreward.callbacks import HistoryLogger

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])

class Killed(pl.Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
pl.seed_everything(0, verbose=False)
keep = ModelCheckpoint(folder, save_last=True, save_top_k=0, every_n_train_steps=2)
trainer = pl.Trainer(
    accelerator="cpu", max_epochs=4, val_check_interval=0.5, log_every_n_steps=1,
    num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False,
    logger=HistoryLogger(str(folder)), callbacks=[keep, Killed()], default_root_dir=folder,
)
last = folder / "last.ckpt"
model, data = shared.model_of(folder.parent), shared.data_of(folder.parent)
trainer.fit(model, data, ckpt_path=last if last.exists() else None)
"""


def losses_of(folder: Path) -> dict[int, dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        row["step"]: {name: value for name, value in row.items() if name.startswith("loss/")}
        for row in rows
        if "loss/total" in row
    }


def test_a_killed_run_of_m7_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    """SIGKILL in the middle of the second epoch; losses of all steps agree within 1e-6."""

    def run(name: str, kill_at: int = -1) -> int:
        (folder / name).mkdir(exist_ok=True)
        script = folder / "run.py"
        script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
        return run_warm(script, folder / name, kill_at, timeout=300).returncode

    assert run("whole") == 0
    assert run("cut", kill_at=7) == -signal.SIGKILL
    steps_before = set(losses_of(folder / "cut"))
    assert run("cut") == 0
    whole, cut = losses_of(folder / "whole"), losses_of(folder / "cut")
    assert max(steps_before) < max(whole)
    assert whole.keys() == cut.keys()
    assert len(whole) == 4 * 5
    for step, losses in whole.items():
        assert losses == pytest.approx(cut[step], abs=1e-6), step
