"""Cache folder of downloaded and converted weights; each entry is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from ctrlreward.files import whole_folder


def cache_folder() -> Path:
    """Return `$CTRLREWARD_CACHE`, else `$XDG_CACHE_HOME/ctrlreward` or `~/.cache/ctrlreward`."""
    if own := os.environ.get("CTRLREWARD_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ctrlreward"


def build_once(key: str, build: Callable[[Path], None]) -> Path:
    """Return the cache folder `key`, whole or absent; one process fills it with `build`."""
    folder = cache_folder() / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{key}.lock")):
            if not folder.is_dir():
                with whole_folder(folder) as unfinished:
                    build(unfinished)
    return folder
