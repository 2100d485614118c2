"""The folder of the last run, moved aside before another run writes there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from ctrlreward.callbacks import BeforeAfter, HistoryLogger

# A folder with one of these holds a run.
_SIGNS = ("metrics.jsonl", "summary.json", "checkpoints")

# Those that another run would replace; Lightning gives checkpoints of one name a version.
_REPLACED = ("metrics.jsonl", "summary.json")

# What runs write into their folder: this project, Lightning, and the loggers that come with it.
_OF_A_RUN = (
    *_SIGNS,
    "config.yaml",
    "curves.png",
    "before.jsonl",
    "after.jsonl",
    "samples",
    "lightning_logs",
    "version_*",
    "wandb",
    "mlruns",
    "events.out.tfevents.*",
    "hparams.yaml",
    "metrics.csv",
    ".*.unfinished",  # of a run that was killed; see ctrlreward/files.py
    ".*.replaced",
)

# Lightning resumes from such a checkpoint on its own, after a cluster has requeued the job.
_REQUEUED = "hpc_ckpt_*.ckpt"


def make_room(trainer: Trainer) -> Iterator[tuple[Path, Path]]:
    """Move the last run aside from each folder that the trainer's run will write.

    These are `default_root_dir` and the folder of a `HistoryLogger`.

    Yields:
        Each folder that was moved, and its new path.

    Raises:
        ValueError: See `move_last_run_aside`.
        OSError: See `move_last_run_aside`.
    """
    root = Path(trainer.default_root_dir)
    histories = [one.path for one in trainer.loggers if isinstance(one, HistoryLogger)]
    written = {path.resolve() for path in histories}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, BeforeAfter):
            written |= {(root / f"{name}.jsonl").resolve() for name in callback.others}
        if isinstance(callback, ModelCheckpoint) and callback.dirpath:
            written.add(Path(callback.dirpath).resolve())
    for folder in dict.fromkeys([root, *(path.parent for path in histories)]):
        place = folder.resolve()
        within = [path.relative_to(place) for path in written if path.is_relative_to(place)]
        aside = move_last_run_aside(folder, {path.parts[0] for path in within if path.parts})
        if aside:
            yield folder, aside


def move_last_run_aside(folder: Path, written: Collection[str] = ()) -> Path | None:
    """Rename the folder of the last run to the first free of `<folder>-1`, `<folder>-2`, ….

    Only a folder that a run has to itself is renamed: one with `metrics.jsonl`, `summary.json` or
    `checkpoints`, and with nothing but what runs write. A folder without a run is left as it is,
    and so is one with only `checkpoints` of a run beside other files.

    Args:
        folder: `default_root_dir` of the run that is about to start.
        written: Further names of files and folders that the run writes there.

    Returns:
        The new path; None if nothing was renamed.

    Raises:
        ValueError: The folder holds a run and other files, or is the working directory or one of
            its parents, and the new run would replace files of the last one.
        OSError: The folder can't be renamed.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not any(sign in names for sign in _SIGNS):
        return None
    if any(fnmatchcase(name, _REQUEUED) for name in names):
        return None
    own = (*_OF_A_RUN, *written)
    others = [name for name in names if not any(fnmatchcase(name, each) for each in own)]
    place = folder.resolve()
    at_work = Path.cwd().is_relative_to(place)
    if others or at_work:
        if not any(name in names for name in _REPLACED):
            return None
        why = f"also holds {others[0]}" if others else "is the working directory or holds it"
        raise ValueError(
            f"default_root_dir = {folder} has the files of a run, and {why}, so it is not moved "
            "aside: give another --trainer.default_root_dir, or go on with this run by "
            "--ckpt_path last"
        )
    aside = _first_free(place)
    place.rename(aside)
    if folder.is_symlink():  # it goes on pointing to a folder
        place.mkdir()
        return aside
    return folder.with_name(aside.name)


def _first_free(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}-{number}")).exists() or aside.is_symlink():
        number += 1
    return aside
