"""A judge that a job needs is trained by one process, and only if it does not exist."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from ctrlreward.recipes import trained_first
from ctrlreward.recipes.trained_first import TrainedFirst


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedFirst:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    return TrainedFirst(str(tmp_path / "model"), "judge.yaml", ["--trainer.max_epochs=2"])


def test_of_two_that_need_a_model_one_trains_it(
    job: TrainedFirst, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> None:
        commands.append(command)
        time.sleep(0.5)  # the other one waits
        Path(job.folder).mkdir()

    monkeypatch.setattr(trained_first.subprocess, "run", run)
    both = [threading.Thread(target=job.train_if_absent) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    job.train_if_absent()
    (command,) = commands
    options = ["--config", "judge.yaml", "--model.init_args.folder", job.folder]
    assert command[4:] == [*options, "--ckpt_path", "last", "--trainer.max_epochs=2"]


def test_a_training_that_fails_or_writes_no_model_is_an_error(
    job: TrainedFirst, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CalledProcessError(2, ["train"])
    for error, expected in ((failed, type(failed)), (None, FileNotFoundError)):

        def run(command: list[str], check: bool, error: Exception | None = error) -> None:
            if error is not None:
                raise error

        monkeypatch.setattr(trained_first.subprocess, "run", run)
        with pytest.raises(expected):  # the first failure releases the lock
            job.train_if_absent()
