"""Cache folder of downloaded and converted weights; each entry is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock

from ctrlreward.files import whole_folder


def cache_folder() -> Path:
    """Return `$CTRLREWARD_CACHE`, else `$XDG_CACHE_HOME/ctrlreward` or `~/.cache/ctrlreward`."""
    if own := os.environ.get("CTRLREWARD_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ctrlreward"


def locked(path: Path, problem: str, variable: str) -> AcquireReturnProxy[Any]:
    """Return a lock on a file or folder of a cache; an error has `problem` and `variable`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_name(f".{path.name}.lock")).acquire()
    except OSError as error:
        raise OSError(f"{problem} ({error}). Set {variable} to a writable folder.") from error


def build_once(key: str, build: Callable[[Path], None]) -> Path:
    """Return the cache folder `key`, whole or absent; one process fills it with `build`."""
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    problem = f"the cache folder {folder.parent} is not writable"
    with locked(folder, problem, "CTRLREWARD_CACHE"):
        if not folder.is_dir():
            with whole_folder(folder) as unfinished:
                build(unfinished)
    return folder
