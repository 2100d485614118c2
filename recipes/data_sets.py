"""Data sets of the recipes by name, downloaded at their first use.

`data_sets.yaml` has their addresses, hashes and terms. Files are in `$CTRLREWARD_DATA`, else in
`data` of the cache. This prints the path of each named file, and downloads what is absent:

    python -m ctrlreward.recipes.data_sets yelp-shen/sentiment.test.0 yelp-shen/sentiment.test.1
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.extras import import_extra
from ctrlreward.files import write_whole
from ctrlreward.models.cache import cache_folder
from ctrlreward.recipes import rated_rows

# Content of `data_sets.yaml` by data set.
DATA_SETS: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


def data_folder() -> Path:
    """Return the folder of data sets: `$CTRLREWARD_DATA` if set, else `data` in the cache."""
    if own := os.environ.get("CTRLREWARD_DATA"):
        return Path(own).expanduser()
    return cache_folder() / "data"


def local_file(file: str | Path) -> Path:
    """Return the path of a file on this machine, downloading it at its first use.

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
    entry = DATA_SETS.get(data_set)
    if not name or entry is None or (name not in entry["files"] and Path(file).exists()):
        return Path(file).expanduser()
    if name not in entry["files"]:
        files = ", ".join(entry["files"])
        raise ValueError(f"data set {data_set!r} has no file {name!r}, only {files}")
    own, path = entry["files"][name], data_folder() / entry.get("folder", data_set) / name
    if path.is_file():
        return path
    if name == rated_rows.FILE:  # no part has a hash, but the whole does
        content = rated_rows.make(lambda part: _part(data_set, part))
        if own["hash"] != _hash(content, "sha256"):
            raise ValueError(f"{file}, made of its published parts, has another sha256")
        write_whole(path, content)
        return path
    published = own.get("path") or entry["path"] + name
    return _downloaded(entry["address"] + published, path, own["hash"])


def _part(data_set: str, name: str) -> Path:
    """Return a file that is listed, or is below the address of the data set."""
    if name in DATA_SETS[data_set]["files"]:
        return local_file(f"{data_set}/{name}")
    path = data_folder() / data_set / name
    return path if path.is_file() else _downloaded(DATA_SETS[data_set]["address"] + name, path)


def _downloaded(address: str, path: Path, digest: str | None = None) -> Path:
    pooch = import_extra("pooch", f"the file {path.name}")
    of_git = bool(digest and digest.startswith("git:"))  # which pooch does not know
    try:
        pooch.retrieve(address, None if of_git else digest, fname=path.name, path=path.parent)
    except OSError as error:
        raise OSError(f"{address} can't be downloaded: put the file at {path}") from error
    if of_git and _hash(path.read_bytes(), "git") != digest:
        path.unlink()
        raise ValueError(f"{address} does not have the {digest} of the published file")
    return path


def _hash(content: bytes, kind: str) -> str:
    """Return `sha256:…`, or `git:…`, git's hash of a file with this content."""
    if kind == "sha256":
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    header = b"blob %d\0" % len(content)
    return f"git:{hashlib.sha1(header + content, usedforsecurity=False).hexdigest()}"


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Print the path of each named file."""
    for name in arguments:
        print(local_file(name))


if __name__ == "__main__":
    main(sys.argv[1:])
