"""Files and folders that are there whole or not at all, whenever a run is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file, in place of one that is there; its folders are made.

    It is written beside its place and then moved, and is on the disk when this returns.

    Args:
        path: The file.
        content: Bytes, or text, which is written as UTF-8 with its line ends as they are.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _beside(path, "unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder to be filled, which then takes the place of the one at `path`.

    Where filling it raises, or the process is killed, the one that was there stays; killed between
    the two last moves, it lies beside its place as `.NAME.replaced`.

    Args:
        path: The folder; the folders above it are made.
    """
    unfinished, replaced = _beside(path, "unfinished"), _beside(path, "replaced")
    for leftover in (unfinished, replaced):  # of a run that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if path.exists():
            path.rename(replaced)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")
