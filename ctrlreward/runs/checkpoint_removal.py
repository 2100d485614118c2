"""Removal of a run's checkpoints that are not needed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ctrlreward.files import hold, pointed_to
from ctrlreward.runs.folder import LOCK, StoredRun


def removable(run: StoredRun, keep: Collection[int]) -> list[Path]:
    """Return files and folders of checkpoints that can be removed.

    The last checkpoint stays, and so does one that a file or a link names as the one to resume
    from, and the checkpoints of the steps `keep`. All paths are in the folder of the checkpoints,
    and none is a link.

    Raises:
        ValueError: A checkpoint of these steps is not on disk, checkpoints are in several folders,
            or the run is in progress.
    """
    for step in keep:
        if step not in run.checkpoints:
            raise ValueError(
                f"the checkpoint of step {step} is not in {run.checkpoint_folder}, so nothing is "
                "removed. Name the folder of the checkpoints with --checkpoints."
            )
    # Checkpoints may be of several runs; OpenRLHF has `_actor` and `_critic` of one run.
    parents = (path.parent for paths in run.checkpoints.values() for path in paths)
    folders = {each.parent if each.name in ("_actor", "_critic") else each for each in parents}
    if len(folders) > 1:
        names = ", ".join(sorted(map(str, folders)))
        raise ValueError(
            f"checkpoints are in {len(folders)} folders, so nothing is removed. Name the folder of "
            f"this run with --checkpoints ({names})."
        )
    place = run.checkpoint_folder or run.folder
    for folder in {run.folder, place}:
        if (folder / LOCK).is_file():
            with hold(folder / LOCK, folder, "Nothing is removed: wait until it has ended."):
                pass
    root = place.resolve()
    needed = {*keep, max(run.checkpoints)}
    pointed = set(pointed_to(root))
    return [
        path
        for step, paths in run.checkpoints.items()
        if step not in needed and not any(path.resolve() in pointed for path in paths)
        for path in paths
        if not path.is_symlink() and path.resolve().is_relative_to(root)
    ]


def size_of(path: Path) -> int:
    """Return the bytes of a file or of a folder's files, links not followed."""
    inner = (each for each in path.rglob("*") if not each.is_dir())
    return sum(each.lstat().st_size for each in (inner if path.is_dir() else [path]))
