"""Folders of runs: locked by one process, and moved aside before another run writes there."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from ctrlreward.callbacks import BeforeAfter, HistoryLogger
from ctrlreward.files import hold
from ctrlreward.runs.folder import LOCK

# A folder with one of these contains a run.
_SIGNS = ("metrics.jsonl", "summary.json", "checkpoints")

# Files that another run would replace; Lightning adds a version to checkpoints of the same name.
_REPLACED = ("metrics.jsonl", "summary.json")

# Files that runs write into their folder: this project, Lightning, and the loggers that come with
# it.
_OF_A_RUN = (
    *_SIGNS,
    LOCK,
    *("config.yaml", "curves.png", "before.jsonl", "after.jsonl", "samples"),
    *("provenance.json", "report.html"),
    *("lightning_logs", "version_*", "hparams.yaml", "metrics.csv", "events.out.tfevents.*"),
    *("wandb", "mlruns"),
    *(".*.unfinished", ".*.replaced"),  # of a run that was killed; see ctrlreward/files.py
)

# Lightning resumes from such a checkpoint on its own, after a cluster has requeued the job.
_REQUEUED = "hpc_ckpt_*.ckpt"


@contextmanager
def run_folders(trainer: Trainer, resumed: bool) -> Iterator[None]:
    """Lock each folder that the trainer's run writes, so that no other run writes there.

    These are `default_root_dir` and the folder of a `HistoryLogger`. The last run is moved aside
    from each unless it is resumed.
    """
    advice = "Use another --trainer.default_root_dir, or wait until that run has ended."
    with ExitStack() as held:
        for folder in _folders(trainer):
            held.enter_context(hold(folder / LOCK, folder, advice))
        for folder, aside in () if resumed else move_last_runs_aside(trainer):
            print(f"moved the last run from {folder} to {aside}", file=sys.stderr)
            # A new one; the old one is still locked.
            held.enter_context(hold(folder / LOCK, folder, advice))
        yield


def move_last_runs_aside(trainer: Trainer) -> Iterator[tuple[Path, Path]]:
    """Move aside the last run of each folder that the run will write; yield both paths."""
    root = Path(trainer.default_root_dir)
    written = {path.resolve() for path in _histories(trainer)}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, BeforeAfter):
            written |= {(root / f"{name}.jsonl").resolve() for name in callback.others}
        if isinstance(callback, ModelCheckpoint) and callback.dirpath:
            written.add(Path(callback.dirpath).resolve())
    for folder in _folders(trainer):
        place = folder.resolve()
        within = [path.relative_to(place) for path in written if path.is_relative_to(place)]
        aside = move_last_run_aside(folder, {path.parts[0] for path in within if path.parts})
        if aside:
            yield folder, aside


def move_last_run_aside(folder: Path, written: Collection[str] = ()) -> Path | None:
    """Rename the folder of the last run to the first free of `<folder>-1`, …; return it.

    Only a folder of a single run is renamed: one with `metrics.jsonl`, `summary.json` or
    `checkpoints`, and otherwise only files that runs write, extended by `written`. A folder without
    a run is not touched, and neither is one with only `checkpoints` of a run and other files.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not {*_SIGNS} & {*names} or fnmatch.filter(names, _REQUEUED):
        return None
    own = {name for each in (*_OF_A_RUN, *written) for name in fnmatch.filter(names, each)}
    others = [name for name in names if name not in own]
    place = folder.resolve()
    if others or Path.cwd().is_relative_to(place):
        if not {*_REPLACED} & {*names}:
            return None
        why = f"also contains {others[0]}" if others else "is the working directory or contains it"
        raise ValueError(
            f"default_root_dir = {folder} has the files of a run, and {why}, so it is not moved "
            "aside. Use another --trainer.default_root_dir, or resume this run with "
            "--ckpt_path last."
        )
    number = 1
    while (aside := place.with_name(f"{place.name}-{number}")).exists() or aside.is_symlink():
        number += 1
    place.rename(aside)
    if folder.is_symlink():  # it still points to a folder
        place.mkdir()
        return aside
    return folder.with_name(aside.name)


def _folders(trainer: Trainer) -> list[Path]:
    """Return `default_root_dir` and the folder of each `HistoryLogger`."""
    root = Path(trainer.default_root_dir)
    return list(dict.fromkeys([root, *(path.parent for path in _histories(trainer))]))


def _histories(trainer: Trainer) -> list[Path]:
    return [logger.path for logger in trainer.loggers if isinstance(logger, HistoryLogger)]
