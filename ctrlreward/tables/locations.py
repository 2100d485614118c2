"""Files and folders, on this machine or on a filesystem of fsspec, by path or URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import fsspec

from ctrlreward.files import whole_file
from ctrlreward.tables.parsing import no_such_file

STANDARD = "-"  # standard input or output


class Location:
    """A file or folder, by path or URL, which may not exist; `shown` is its name in messages."""

    def __init__(self, address: str | Path, shown: str | None = None) -> None:
        self._address = str(address)
        self._shown = shown or self._address
        plain = os.path.expanduser(self._address.removeprefix("file://"))
        self.path = None if "://" in plain else Path(plain)
        if self.path is None:
            self._system, self._inner = fsspec.core.url_to_fs(self._address)
        else:  # fsspec would read "data:" or "::" in a name as parts of a URL
            self._system, self._inner = fsspec.filesystem("file"), os.path.abspath(plain)
        self.name = PurePosixPath(self._inner).name
        self.suffix = PurePosixPath(self._inner).suffix

    def __str__(self) -> str:
        return self._shown

    def beside(self, name: str) -> Location:
        """Return the location of another name in the same folder."""
        folder, slash, _ = self._address.rstrip("/").rpartition("/")
        return Location(f"{folder}{slash}{name}")

    def child(self, name: str) -> Location:
        """Return the location of a name in this folder."""
        return Location(f"{self._address.rstrip('/')}/{name}")

    def exists(self) -> bool:
        """Return True for a file or folder that exists."""
        return self._system.exists(self._inner)

    def is_folder(self) -> bool:
        """Return True for a folder that exists."""
        return self._system.isdir(self._inner)

    def is_same(self, other: Location) -> bool:
        """Return True if both, which exist, are one file."""
        if self.path is None or other.path is None:
            return self._address == other._address
        return self.path.samefile(other.path)

    def names(self) -> list[str]:
        """Return the sorted names of the files in a folder; empty if it is missing."""
        return self.files(depth=1)

    def files(self, depth: int) -> list[str]:
        """Return the sorted paths of the files below a folder, relative to it."""
        self._system.invalidate_cache(self._inner)
        found = self._system.find(self._inner, maxdepth=depth)
        return sorted(str(PurePosixPath(each).relative_to(self._inner)) for each in found)

    def open(self) -> BinaryIO:
        """Open a file for reading."""
        if not self.exists():
            raise self.missing()
        return cast(BinaryIO, self._system.open(self._inner, "rb"))

    def missing(self) -> FileNotFoundError:
        """Return the error for a location that does not exist."""
        if self.path is not None:
            return no_such_file(self.path)
        return FileNotFoundError(f"No such file or folder: {self}")

    def whole_file(self) -> AbstractContextManager[BinaryIO]:
        """Yield a file to write, which replaces the old one at the end, or not at all."""
        return whole_file(self.path) if self.path is not None else self._whole_remote_file()

    @contextmanager
    def _whole_remote_file(self) -> Iterator[BinaryIO]:
        self._system.makedirs(self._system._parent(self._inner), exist_ok=True)
        with self._system.transaction, self._system.open(self._inner, "wb") as file:
            yield file

    def remove(self) -> None:
        """Delete a file, or a folder with its content."""
        self._system.rm(self._inner, recursive=True)
