"""Data sets of the recipes by name, downloaded at their first use.

`data_sets.yaml` has their addresses, hashes and terms. Files are in `$CTRLREWARD_DATA`, else in
`data` of the cache. This prints the path of each named file, and downloads what is absent:

    python -m ctrlreward.recipes.data_sets yelp-shen/sentiment.test.0 yelp-shen/sentiment.test.1
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ctrlreward.extras import import_extra
from ctrlreward.files import write_whole
from ctrlreward.models.cache import cache_folder

DATA_SETS: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
"""Content of `data_sets.yaml` by data set."""


def data_folder() -> Path:
    """Return the folder of data sets: `$CTRLREWARD_DATA` if set, else `data` in the cache."""
    if own := os.environ.get("CTRLREWARD_DATA"):
        return Path(own).expanduser()
    return cache_folder() / "data"


def local_file(file: str | Path) -> Path:
    """Return the path of a file on this machine, downloading or making it at its first use.

    A file that is there is used unchanged; a new one is whole and has its hash, or is absent.

    Args:
        file: A file of a data set, such as `yelp-shen/sentiment.dev.0`, or a local path, which need
            not exist (`./yelp-shen/…` for a folder with the name of a data set).

    Raises:
        ValueError: A data set does not have the file, or the new file has another hash.
        ImportError: pooch is not installed.
        OSError: The file can't be downloaded or written.
    """
    data_set, _, name = str(file).partition("/")
    known = DATA_SETS.get(data_set, {}).get("files", {})
    if not name or not known or (name not in known and Path(file).exists()):
        return Path(file).expanduser()
    if name not in known:
        raise ValueError(f"data set {data_set!r} has no file {name!r}, only {', '.join(known)}")
    entry, own = DATA_SETS[data_set], known[name]
    place = Path(own.get("folder", entry.get("folder", data_set)), name)
    path = data_folder() / place
    if path.is_file():
        return path
    if own.get("made"):
        return _made(data_set, name, cache_folder() / "data" / place)
    address = entry["address"] + own.get("path", entry.get("path", "") + name)
    return _downloaded(address, path, own["hash"])


def _downloaded(address: str, path: Path, digest: str | None) -> Path:
    pooch = import_extra("pooch", f"the file {path.name}")
    # It does not know git's hashes.
    known = digest if digest and not digest.startswith("git:") else None
    pooch.retrieve(address, known, fname=path.name, path=path.parent)
    if digest and digest.startswith("git:") and _hash(path.read_bytes(), "git") != digest:
        path.unlink()
        raise ValueError(f"{address} does not have the {digest} of the published file")
    return path


def _made(data_set: str, name: str, path: Path) -> Path:
    """Write a file that a module of `made_data` makes, from files of the data set if any."""
    entry = DATA_SETS[data_set]

    def path_of(other: str) -> Path:
        if other in entry["files"]:
            return local_file(f"{data_set}/{other}")
        own = path.parent / other
        return own if own.is_file() else _downloaded(entry["address"] + other, own, None)

    if not path.is_file():
        maker = importlib.import_module(f"ctrlreward.recipes.made_data.{entry['made_by']}")
        content = maker.make(name, path_of)
        if _hash(content, "sha256") != entry["files"][name]["hash"]:
            raise ValueError(f"{data_set}/{name}, made by this package, has another sha256")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return path


def _hash(content: bytes, kind: str) -> str:
    """Return `sha256:…`, or `git:…`, git's hash of a file with this content."""
    if kind == "sha256":
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    header = b"blob %d\0" % len(content)
    return f"git:{hashlib.sha1(header + content, usedforsecurity=False).hexdigest()}"


def main(arguments: Sequence[str]) -> None:
    """Print the path of each named file."""
    for name in arguments:
        print(local_file(name))


if __name__ == "__main__":
    main(sys.argv[1:])
