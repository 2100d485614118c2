"""Catalogue of data sets, and the resolver from the name of a file to its path."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ctrlreward.arguments import did_you_mean
from ctrlreward.data.download import download
from ctrlreward.files import write_whole
from ctrlreward.weights.cache import cache_folder, locked

_HUB_FILE = re.compile(r"hf://datasets/([^/]+/[^/]+)/(.+)")


@dataclass(frozen=True)
class DataFile:
    r"""A file of a data set, at `place` below a data folder.

    `address` is None for a generated file, `size` (bytes) if unknown. Either `sha256` or `git_blob`
    is known, git's hash of the content, `sha1("blob SIZE\0" + content)`.
    """

    data_set: str
    name: str
    place: str
    address: str | None
    size: int | None
    sha256: str | None
    git_blob: str | None

    def __str__(self) -> str:
        return f"{self.data_set}/{self.name}"

    @property
    def path(self) -> Path:
        """Path of the file, in `data_folder()` or the cache, or where `get` would write it."""
        own, cached = data_folder() / self.place, _cached_data() / self.place
        if own.is_file() or (self.address is not None and not cached.is_file()):
            return own
        return cached

    def get(self) -> Path:
        """Return the path of the file; download or make it first if it is missing.

        The file is complete and checked, or absent. An existing file is used unchanged.

        Raises:
            OSError: The file can't be downloaded or written, or has another checksum.
        """
        path = self.path
        if path.is_file():
            return path
        with locked(path, f"{self} can't be written to {path.parent}", "CTRLREWARD_DATA"):
            if path.is_file():
                return path
            if self.address is None:
                self._make(path)
            else:
                download(
                    str(self), _mirrored(self.place, self.address), path, self.size, self.problem
                )
        return path

    def problem(self, path: Path) -> str | None:
        """Return how the content of a file differs from the published one; None if it does not."""
        if self.size is not None and path.stat().st_size != self.size:
            return f"has {path.stat().st_size:,} bytes, expected {self.size:,}"
        name, expected, digest = "sha256", self.sha256, hashlib.sha256()
        if expected is None:
            header = b"blob %d\0" % path.stat().st_size
            name, expected = "git blob hash", self.git_blob
            digest = hashlib.sha1(header, usedforsecurity=False)
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        if digest.hexdigest() != expected:
            return f"has {name} {digest.hexdigest()}, expected {expected}"
        return None

    def _make(self, path: Path) -> None:
        data_set = DATA_SETS[self.data_set]
        unchecked = []  # files made from them have a checksum, they do not

        def path_of(name: str) -> Path:
            if name in data_set.files:
                return data_set.files[name].get()
            place = f"{Path(self.place).parent}/{name}"
            source = _cached_data() / place
            unchecked.append(source)
            if not source.is_file():
                source.parent.mkdir(parents=True, exist_ok=True)
                address = _mirrored(place, f"{data_set.address}/{name}")
                download(f"{self.data_set}/{name}", address, source)
            return source

        made = path.with_name(f".{path.name}.made")
        maker = importlib.import_module(f"ctrlreward.{data_set.made_by}")
        write_whole(made, maker.make(self.name, path_of))
        if problem := self.problem(made):
            for file in (made, *unchecked):
                file.unlink()
            raise OSError(f"{self}, made by this package, {problem}: report it, please")
        os.replace(made, path)


@dataclass(frozen=True)
class DataSet:
    """A data set: its terms, citation, and its files by name.

    `address` is its public folder, None if all files are made. `made_by` is a module with `make`,
    which gets the name of a file, and a function from the name of another file of the data set, or
    below its address, to a path.
    """

    name: str
    address: str | None
    licence: str
    cite: str
    files: Mapping[str, DataFile]
    made_by: str | None = None


def data_folder() -> Path:
    """Return the folder of data sets: `$CTRLREWARD_DATA` if set, else `data` in the cache."""
    if own := os.environ.get("CTRLREWARD_DATA"):
        return Path(own).expanduser()
    return _cached_data()


def find(name: str) -> Sequence[DataFile]:
    """Return the files of a data set, or the named file, else raise a ValueError.

    Examples:
        >>> [str(file) for file in find("wikitext2")]
        ['wikitext2/valid.txt', 'wikitext2/test.txt']
    """
    data_set, slash, file = name.partition("/")
    if data_set not in DATA_SETS:
        hint = did_you_mean(data_set, DATA_SETS)
        raise ValueError(
            f"No such data set: {data_set!r}{hint}, must be one of {', '.join(DATA_SETS)}"
        )
    known = DATA_SETS[data_set].files
    if not slash:
        return tuple(known.values())
    if file not in known:
        hint = did_you_mean(file, known)
        raise ValueError(
            f"data set {data_set!r} has no file {file!r}{hint}, only {', '.join(known)}"
        )
    return (known[file],)


def local_file(file: str | Path) -> Path:
    """Return the path of a file on this machine, downloading it at its first use.

    Args:
        file: One of
            - a file of a data set, `yelp-shen/sentiment.dev.0` (a local folder of the same name is
              `./yelp-shen/…`);
            - `hf://datasets/<owner>/<name>/<file>`, a file of a data set on the Hugging Face hub;
            - a local path, which need not exist.

    Raises:
        ValueError: A data set does not have the file.
        OSError: The file can't be downloaded; names address, file and folder.
    """
    name = str(file)
    if on_hub := _HUB_FILE.fullmatch(name):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(on_hub[1], on_hub[2], repo_type="dataset"))
    data_set, slash, rest = name.partition("/")
    known = DATA_SETS[data_set].files if slash and data_set in DATA_SETS else {}
    if rest in known or (known and not Path(name).exists()):
        (found,) = find(name)
        return found.get()
    return Path(name).expanduser()


def _cached_data() -> Path:
    return cache_folder() / "data"


def _mirrored(place: str, address: str) -> str:
    """Return the address of a file, or of its path in a data folder on a mirror."""
    mirror = os.environ.get("CTRLREWARD_DATA_MIRROR")
    return f"{mirror.rstrip('/')}/{place}" if mirror else address


def _read_catalogue() -> Mapping[str, DataSet]:
    listed = json.loads(files(__package__).joinpath("sources.json").read_text(encoding="utf-8"))
    data_sets = {}
    for name, entry in listed.items():
        address, made_by = entry.get("address"), entry.get("made_by")
        found = {}
        for file in entry["files"]:
            path = None if file.get("made") else file.get("path", entry.get("path"))
            found[file["name"]] = DataFile(
                data_set=name,
                name=file["name"],
                place=f"{file.get('folder', entry['folder'])}/{file['name']}".lstrip("/"),
                address=path and f"{address}/{path.format(name=file['name'])}",
                size=file.get("bytes"),
                sha256=file.get("sha256"),
                git_blob=file.get("git_blob"),
            )
        data_sets[name] = DataSet(name, address, entry["licence"], entry["cite"], found, made_by)
    return data_sets


DATA_SETS: Mapping[str, DataSet] = _read_catalogue()
"""Each data set by name."""
