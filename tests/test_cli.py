"""`ctrlreward train` on the shipped configurations, with a tiny model."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import SIGTERMException

from ctrlreward.callbacks import (
    BeforeAfter,
    GenerationScorer,
)
from ctrlreward.cli import main
from ctrlreward.command_line.config_files import with_extended
from ctrlreward.jobs.training_job import build, run_folders

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEMO = CONFIGS / "controlled_generation" / "sentiment_smollm2.yaml"


@pytest.fixture
def nothing_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache, which must stay empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_loaded")
def test_the_demo_builds_trainer_model_and_data() -> None:
    cli = build(with_extended(["--config", str(DEMO)]))
    assert list(cli.model.children()) == []  # the policy loads when training starts
    batch = next(iter(cli.datamodule.train_dataloader()))
    assert len(batch) == cli.datamodule.batch_size
    assert cli.trainer.max_steps > 0
    assert cli.config.ckpt_path is None
    callbacks = cli.trainer.callbacks
    (watch,) = (c for c in callbacks if isinstance(c, GenerationScorer))
    (report,) = (c for c in callbacks if isinstance(c, BeforeAfter))
    # Training, selection and report have prefixes of their own.
    seen: set[str] = set()
    for samples in (cli.datamodule.prompts, watch.samples, report.samples):
        names = {prefix.casefold() for prefix in samples.prefixes}
        assert seen.isdisjoint(names)
        seen |= names
    # The report has enough texts of each label.
    assert len(report.samples) * report.generations_per_prompt >= 128
    labels = report.samples.labels
    assert labels is not None
    assert len({labels.count(label) for label in set(labels)}) == 1
    assert set(labels) == set(cli.datamodule.prompts.labels)


def test_a_run_that_sigterm_ended_exits_with_143(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own

    def fit(*_: Any, **__: Any) -> None:
        raise SIGTERMException

    monkeypatch.setattr(pl.Trainer, "fit", fit)
    with pytest.raises(SystemExit) as exit:
        main(["train", "--config", str(DEMO)])
    assert exit.value.code == 143


def test_the_module_of_the_command_line_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py", "--version"])
    monkeypatch.delitem(sys.modules, "ctrlreward.cli")
    runpy.run_module("ctrlreward.cli", run_name="__main__")
    assert capsys.readouterr().out.startswith("ctrlreward ")


# Folders


def test_a_folder_is_of_one_run_at_a_time_and_a_requeued_job_is_resumed(tmp_path: Path) -> None:
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, logger=False)
    for resumed in (False, True):
        with (
            run_folders(trainer, resumed),
            pytest.raises(ValueError, match=f"is in use by process {os.getpid()}"),
            run_folders(trainer, True),
        ):
            pass
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match=f"{tmp_path} has a run"), run_folders(trainer, False):
        pass
    (tmp_path / "hpc_ckpt_1.ckpt").touch()
    with run_folders(trainer, False):
        pass
