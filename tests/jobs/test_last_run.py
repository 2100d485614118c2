"""The folder of the last run is moved aside, and nothing else ever is."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from warm_python import WarmProcess

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.jobs.last_run import move_last_run_aside, move_last_runs_aside

HOLD = Path(__file__).with_name("hold_run_folder.py")
RUN = ("metrics.jsonl", "checkpoints/last.ckpt", "config.yaml", "wandb/offline-run-1/run.wandb")


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[..., Path]:
    """Function that fills a folder with files of the given names."""

    def fill(files: Sequence[str], name: str = "demo") -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f"{name}: {file}")
        return folder

    return fill


def content(folder: Path) -> dict[str, str]:
    """Text of each file below a folder, by its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_runs_are_kept_side_by_side(folder_with: Callable[..., Path]) -> None:
    for number in (1, 2, 3):
        folder = folder_with([*RUN, f"samples/score/step={number:06d}.jsonl"])
        before = content(folder)
        aside = move_last_run_aside(folder)
        assert aside == folder.with_name(f"demo-{number}")
        assert content(aside) == before
        assert not folder.exists()
    assert len(list(folder.parent.iterdir())) == 3


@pytest.mark.parametrize("sign", ["metrics.jsonl", "summary.json", "checkpoints/step=3.ckpt"])
def test_one_sign_of_a_run_is_enough(sign: str, folder_with: Callable[..., Path]) -> None:
    folder = folder_with([sign, ".metrics.jsonl.unfinished"])
    assert move_last_run_aside(folder) == folder.with_name("demo-1")


def test_a_free_name_is_found(folder_with: Callable[..., Path]) -> None:
    folder = folder_with(RUN)
    folder_with([], "demo-1")  # renaming would replace an empty folder
    folder.with_name("demo-2").symlink_to("nowhere")
    assert move_last_run_aside(folder) == folder.with_name("demo-3")
    assert folder.with_name("demo-1").is_dir()


@pytest.mark.parametrize(
    "files",
    [
        [],
        ["config.yaml", "lightning_logs/version_0/hparams.yaml"],  # Lightning counts versions
        ["notes.md", "checkpoints/step=3.ckpt"],  # and gives checkpoints of one name a version
        [*RUN, "hpc_ckpt_1.ckpt"],  # a requeued job, which Lightning resumes
    ],
)
def test_other_folders_stay(files: list[str], folder_with: Callable[..., Path]) -> None:
    folder = folder_with(files)
    before = content(folder)
    assert move_last_run_aside(folder) is None
    assert content(folder) == before
    assert move_last_run_aside(folder / "missing") is None


@pytest.mark.parametrize("files", [[*RUN, "notes.md"], ["summary.json", "data/train.txt"]])
def test_a_run_among_other_files_is_neither_moved_nor_replaced(
    files: list[str], folder_with: Callable[..., Path]
) -> None:
    folder = folder_with(files)
    before = content(folder)
    other = files[-1].split("/")[0]
    message = f"demo has the files of a run, and also contains {other}, so it is not moved"
    with pytest.raises(ValueError, match=message):
        move_last_run_aside(folder)
    assert content(folder) == before
    assert move_last_run_aside(folder, written={other})


@pytest.mark.parametrize("place", [".", "samples"])
def test_the_working_directory_is_not_moved(
    place: str, folder_with: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with([*RUN, "samples/score/step=000001.jsonl"])
    monkeypatch.chdir(folder / place)
    with pytest.raises(ValueError, match="is the working directory or contains it"):
        move_last_run_aside(Path(".") if place == "." else Path(".."))
    assert folder.is_dir()


def test_a_link_goes_on_pointing_to_a_folder(
    folder_with: Callable[..., Path], tmp_path: Path
) -> None:
    disk = folder_with(RUN, "on-a-large-disk")
    link = tmp_path / "demo"
    link.symlink_to(disk)
    aside = move_last_run_aside(link)
    assert aside == disk.with_name("on-a-large-disk-1")
    assert content(aside).keys() == set(RUN)
    assert link.is_symlink()
    assert list(link.iterdir()) == []


def test_all_folders_of_a_trainer_are_free(folder_with: Callable[..., Path]) -> None:
    """Its own with a folder of checkpoints, and that of a logger elsewhere."""
    root = folder_with(["summary.json", "best/step=3.ckpt", "config.yaml"])
    history = folder_with(["metrics.jsonl"], "history")
    empty = folder_with([], "empty")

    def trainer(folder: Path, **options: Any) -> pl.Trainer:
        return pl.Trainer(accelerator="cpu", default_root_dir=folder, **options)

    best = ModelCheckpoint(dirpath=root / "best")
    loggers = [HistoryLogger(str(history))]
    moved = list(move_last_runs_aside(trainer(root, logger=loggers, callbacks=[best])))
    assert moved == [(root, root.with_name("demo-1")), (history, history.with_name("history-1"))]
    assert list(move_last_runs_aside(trainer(empty, logger=False))) == []


def wait_for_lines(files: Sequence[Path], count: int) -> list[list[str]]:
    """Return the lines of files as soon as each has that many."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = [f.read_text().splitlines() if f.exists() else [] for f in files]
        if all(len(each) >= count for each in lines):
            return lines
        time.sleep(0.02)
    raise TimeoutError("\n".join(f.with_suffix(".err").read_text() for f in files))


def test_one_of_several_runs_that_start_at_once_has_the_folder(
    folder_with: Callable[..., Path], tmp_path: Path
) -> None:
    folder = folder_with(RUN)
    numbers = itertools.count()

    def runs(count: int, resumed: bool = False) -> dict[int, str]:
        """Return what each of several processes says, by its id."""
        start = tmp_path / f"start-{next(numbers)}"
        arguments = [HOLD, folder, start, *(["resumed"] if resumed else [])]
        said = [tmp_path / f"{start.name}-{i}" for i in range(count)]
        processes = [WarmProcess(arguments, out, out.with_suffix(".err")) for out in said]
        wait_for_lines(said, 1)
        start.touch()
        lines = wait_for_lines(said, 2)
        return {process.pid: line[1] for process, line in zip(processes, lines, strict=True)}

    first = runs(4)
    assert sorted(first.values())[1:] != ["held"] * 3
    (holder,) = (process for process, words in first.items() if words == "held")
    for words in first.values():
        assert words == "held" or f"{folder} is in use by " in words
    assert sorted(path.name for path in folder.parent.iterdir()) == ["demo", "demo-1"]
    for resumed in (False, True):
        (words,) = runs(1, resumed).values()
        assert words.startswith(f"{folder} is in use by process {holder} on ")
        assert "Use another --trainer.default_root_dir" in words
    os.kill(holder, signal.SIGKILL)
    ((holder, words),) = runs(1, resumed=True).items()
    os.kill(holder, signal.SIGKILL)
    assert words == "held"
