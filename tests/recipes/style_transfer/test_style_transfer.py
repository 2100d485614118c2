from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from scoring_recipes import random_judge

from ctrlreward import Samples
from ctrlreward.callbacks import BeforeAfter, GenerationScorer
from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.scoring_models.text_cnn import TextCNNClassifier
from ctrlreward.recipes.style_transfer import (
    ScoringModels,
    Sentences,
    TransferData,
    before_after,
    held_out_scorer,
)
from ctrlreward.recipes.text_files import matching_key, read_held_out

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "style_transfer" / "yelp_smollm2.yaml"
SOUR = [f"the {thing} was so cold ." for thing in ("soup", "room", "bus", "play")]
SWEET = [f"the {thing} was so lovely ." for thing in ("soup", "room", "bus", "play")]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sour").write_text("\n".join([*SOUR, "too short", SOUR[0]]))
    (tmp_path / "sweet").write_text("\n".join(SWEET))
    return {"sour": str(tmp_path / "sour"), "sweet": str(tmp_path / "sweet")}


def test_each_sentence_has_the_other_style_as_its_target(files: dict[str, str]) -> None:
    prompts = Sentences(files, count=4).prompts()
    assert sorted(prompts.sources[:4]) == sorted(SOUR)
    assert sorted(prompts.sources[4:]) == sorted(SWEET)
    assert prompts.labels == ("sweet",) * 4 + ("sour",) * 4
    assert prompts.texts == prompts.prefixes == ("",) * 8
    assert prompts.prompts[0] == f"sour: {prompts.sources[0]}\nsweet:"
    assert prompts.prompts[7] == f"sweet: {prompts.sources[7]}\nsour:"


@pytest.fixture
def scoring_models(tiny_llama: Callable[[str], str], tmp_path: Path) -> ScoringModels:
    judge = TextCNNClassifier(random_judge(tmp_path / "judge", {"sour": SOUR, "sweet": SWEET}))
    return ScoringModels(judge, "minilm-l6", tiny_llama(" abcdefghijklmnopqrstuvwxyz."))


def test_selection_and_report_have_the_same_scores_and_copying_is_compared(
    files: dict[str, str], scoring_models: ScoringModels
) -> None:
    watch = held_out_scorer(Sentences(files, count=2), scoring_models)
    report = before_after(Sentences(files, count=3), scoring_models)
    assert [*watch.components] == [*report.components]
    assert next(iter(report.components)) == "gm"
    assert (len(watch.samples), len(report.samples)) == (4, 6)
    assert watch.samples.groups == watch.samples.labels
    copies = report.others["copying"]
    assert copies.texts == copies.sources == report.samples.sources
    assert copies.labels == report.samples.labels


@pytest.mark.soak
def test_training_selection_and_report_have_sentences_of_their_own(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that the one set by the command line is undone
    cli = build(["--config", str(CONFIG), f"--trainer.default_root_dir={tmp_path}"])
    assert not list(cli.model.children())  # nothing is loaded
    cli.datamodule.setup("fit")
    (watch,) = (c for c in cli.trainer.callbacks if isinstance(c, GenerationScorer))
    (report,) = (c for c in cli.trainer.callbacks if isinstance(c, BeforeAfter))
    sets = [cli.datamodule.prompts, watch.samples, report.samples]
    sources = [{matching_key(source) for source in samples.sources} for samples in sets]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert sources[i].isdisjoint(sources[j])
    for samples in sets:
        assert samples.labels.count("negative") * 2 == len(samples)
    assert len(report.samples) == 1000
    rated = map(str, (data_dir / "li2018").glob("*.[01]"))
    assert sources[0].isdisjoint(read_held_out(rated))


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
    files: dict[str, str], tmp_path: Path, updates: int
) -> None:
    def run(batches: int, ckpt_path: str | None = None) -> tuple[Recorder, str]:
        module = Recorder(updates)
        saver = ModelCheckpoint(tmp_path / "saved", save_last=True)
        limits = {"max_epochs": 1, "max_steps": batches * updates, "val_check_interval": 2}
        trainer = quiet_trainer(enable_checkpointing=True, callbacks=[saver], **limits)
        data = TransferData(Sentences(files, count=4), batch_size=3, steps=8)
        trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=True)
        return module, saver.last_model_path

    uncut, _ = run(8)
    assert len(set(uncut.seen)) == len(uncut.seen) == 8
    for batches in (4, 8):
        cut, path = run(batches)
        resumed, _ = run(8, path)
        assert cut.seen + resumed.seen == uncut.seen
