from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from scoring_recipes import written

from ctrlreward import Samples
from ctrlreward.command_line.config_files import read_job, resolved
from ctrlreward.jobs.recipes import recipe_file
from ctrlreward.recipes.style_transfer import (
    ScoringModels,
    Sentences,
    TransferData,
    before_after,
    held_out_scorer,
)


def test_each_sentence_has_the_other_style_as_its_target(
    styles: dict[str, str], tmp_path: Path
) -> None:
    prompts = Sentences(styles, count=6).prompts()
    sources, wanted = prompts.sources or (), prompts.prompts or ()
    assert all("cold" in source for source in sources[:6])
    assert all("lovely" in source for source in sources[6:])
    assert len(set(sources)) == 12
    assert prompts.labels == ("sweet",) * 6 + ("sour",) * 6
    assert prompts.texts == prompts.prefixes == ("",) * 12
    assert wanted[0] == f"sour: {sources[0]}\nsweet:"
    assert wanted[11] == f"sweet: {sources[11]}\nsour:"
    held_out = written(tmp_path / "held_out", [f"x\t{sources[3].upper()}", sources[7]])
    fewer = Sentences(styles, count=5, exclude=[held_out]).prompts()
    assert {*fewer.sources} == {*sources} - {sources[3], sources[7]}


def test_selection_and_report_have_the_same_scores(
    styles: dict[str, str], scoring_models: ScoringModels
) -> None:
    watch = held_out_scorer(Sentences(styles, count=2), scoring_models)
    report = before_after(Sentences(styles, count=3), scoring_models)
    assert [*watch.components] == [*report.components]
    assert next(iter(report.components)) == "gm"
    assert (len(watch.samples), len(report.samples)) == (4, 6)
    assert watch.samples.groups == watch.samples.labels


def test_training_selection_and_report_have_sentences_of_their_own() -> None:
    """By their files, and those that are left out of the others."""
    values: Any = resolved(read_job(recipe_file("yelp_smollm2")))["values"]
    train, selection, report = (values[name] for name in ("sentences", "selection", "report"))
    files = [{*part["files"].values()} for part in (train, selection, report)]
    assert len(set.union(*files)) == 6
    assert files[0] | files[2] <= {*selection["exclude"]}
    assert files[2] <= {*train["exclude"]}


class Recorder(pl.LightningModule):
    """Records the sentences of its batches; makes one or two updates of a batch."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.updates = updates
        self.seen: list[tuple[str, ...]] = []

    def training_step(self, batch: Samples, batch_idx: int) -> None:
        self.seen.append(batch.sources)
        for _ in range(self.updates):
            self.optimizers().step()

    def validation_step(self, batch: object, batch_idx: int) -> None: ...

    def transfer_batch_to_device(self, batch: Samples, device: object, _: int) -> Samples:
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_resumed_run_goes_on_with_the_next_sentences(
    styles: dict[str, str], tmp_path: Path, updates: int
) -> None:
    def run(batches: int, ckpt_path: str | None = None) -> tuple[Recorder, str]:
        module = Recorder(updates)
        saver = ModelCheckpoint(tmp_path / "saved", save_last=True)
        limits = {"max_epochs": 1, "max_steps": batches * updates, "val_check_interval": 2}
        trainer = quiet_trainer(enable_checkpointing=True, callbacks=[saver], **limits)
        data = TransferData(Sentences(styles, count=4), batch_size=3, steps=8)
        trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=True)
        return module, saver.last_model_path

    uncut, _ = run(8)
    assert len(set(uncut.seen)) == len(uncut.seen) == 8
    for batches in (4, 8):
        cut, path = run(batches)
        resumed, _ = run(8, path)
        assert cut.seen + resumed.seen == uncut.seen
