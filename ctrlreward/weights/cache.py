"""The cache folder: what is fetched or converted once is kept there, complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cache_folder() -> Path:
    """Where fetched and converted weights are kept.

    `$CTRLREWARD_CACHE` where set, else `$XDG_CACHE_HOME/ctrlreward`, else `~/.cache/ctrlreward`.
    """
    if own := os.environ.get("CTRLREWARD_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ctrlreward"


def build_once(key: str, build: Callable[[Path], None]) -> Path:
    """The folder `key` of the cache; `build` fills it where it is missing.

    It appears complete or not at all (filled under another name, then renamed), and processes
    that ask at the same time wait for the first.

    Args:
        key: The folder's name.
        build: Writes the files into the folder that it is given.

    Raises:
        OSError: The cache folder can't be written.
    """
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder.with_name(f".{key}.lock")).acquire()
    except OSError as error:
        raise OSError(
            f"the cache folder {folder.parent} can't be written ({error}): "
            "set CTRLREWARD_CACHE to a folder that can"
        ) from error
    with held:
        if not folder.is_dir():
            partial = folder.with_name(f".{key}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
            partial.mkdir()
            try:
                build(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder
