"""Manifest and scores of an unfinished run: a file for each shard."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice, pairwise, zip_longest
from typing import Any, TypeVar

import numpy as np

from ctrlreward.scorers.base import Scores
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import Row

T = TypeVar("T")

_MANIFEST = "manifest.json"
_SHARD = re.compile(r"(\d+)-([\d.]+)\.json")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard of a corpus.

    Attributes:
        rows: Number of rows.
        checksum: SHA-256 of the rows, hexadecimal.
    """

    rows: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """Settings of a run and the shards of its corpus.

    Attributes:
        settings: JSON values that a resumed run must share, by name (`"columns"`).
        chunk: Rows of each shard but the last.
        shards: The shards in order.
    """

    settings: Mapping[str, Any]
    chunk: int
    shards: Sequence[ShardEntry]

    @property
    def ranges(self) -> list[range]:
        """Rows of each shard in the corpus."""
        ends = accumulate((shard.rows for shard in self.shards), initial=0)
        return [range(start, end) for start, end in pairwise(ends)]

    def to_json(self) -> bytes:
        """Return the manifest as JSON."""
        shards = [{"id": i, **asdict(shard)} for i, shard in enumerate(self.shards)]
        content = {"settings": self.settings, "chunk": self.chunk, "shards": shards}
        return json.dumps(content, indent=0, ensure_ascii=False).encode()

    @staticmethod
    def from_json(content: bytes) -> Manifest:
        """Return the manifest that `to_json` wrote.

        Raises:
            ValueError: The content is no such manifest.
        """
        try:
            found = json.loads(content)
            shards = [ShardEntry(shard["rows"], shard["checksum"]) for shard in found["shards"]]
            return Manifest(found["settings"], found["chunk"], shards)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no manifest of shards: {error}") from None

    def require_same_settings(self, started: Manifest, folder: str) -> None:
        """Raise if a run that was started can't be resumed with these settings.

        Args:
            started: Manifest of the run that was started.
            folder: Where the run keeps its scores, for errors.

        Raises:
            ValueError: Settings differ; names which.
        """
        settings = json.loads(json.dumps(self.settings))
        differing = [name for name in settings if started.settings.get(name) != settings[name]]
        if differing:
            was, now = (
                json.dumps([side.get(name) for name in differing])[:300]
                for side in (started.settings, settings)
            )
            raise ValueError(
                f"{folder} was started with a different {' and '.join(differing)}: {was}, not "
                f"{now}. Resume with the same, or delete the folder to start over"
            )

    def changed_shards(self, started: Manifest) -> list[int]:
        """Return the shards whose rows differ from those of a run that was started, in order.

        Shards that only one of the two has are among them.
        """
        pairs = enumerate(zip_longest(self.shards, started.shards))
        return [number for number, (now, was) in pairs if now != was]


class ShardStore:
    """Folder with the scores of the shards that are done; a file that is missing means undone.

    A file holds some scores of one shard, `{"scores": {"coherence": [-1.5, null]}}`, and is
    renamed into place whole. Its name has the shard and the positions of the scores in `names`
    (`00000003-0.1.json`), since a run that is resumed on other devices may group scorers
    differently.

    Args:
        folder: The folder, which need not exist.
        names: Names of all scores.
    """

    def __init__(self, folder: Location, names: Sequence[str]) -> None:
        self.folder = folder
        self._names = list(names)
        # Shards by the positions of the scores in their files: some tens of bytes for a file.
        self._shards: dict[tuple[int, ...], set[int]] = {}
        for shard, positions in self._on_disk():
            self._shards.setdefault(positions, set()).add(shard)

    def manifest(self) -> Manifest | None:
        """Return the manifest of the run; None if there is none.

        Raises:
            ValueError: The file is not a manifest.
        """
        file = self.folder.child(_MANIFEST)
        if not file.exists():
            return None
        with file.open() as opened:
            try:
                return Manifest.from_json(opened.read())
            except ValueError as error:
                raise ValueError(f"{file} is {error}: delete the folder to start over") from None

    def start(self, manifest: Manifest) -> None:
        """Write the manifest of a new run."""
        self.folder.child(_MANIFEST).write(manifest.to_json())

    def drop(self, shards: Collection[int], names: Collection[str]) -> None:
        """Delete some scores of some shards, and what shares their files."""
        for positions, done in self._shards.items():
            if any(self._names[i] in names for i in positions):
                for shard in done.intersection(shards):
                    self._file(shard, positions).remove()
                    done.remove(shard)

    def missing(self, shard: int, names: Sequence[str]) -> tuple[str, ...]:
        """Return the scores of a shard, of those named, that are not on disk."""
        done = {i for positions in self._positions(shard) for i in positions}
        return tuple(name for name in names if self._names.index(name) not in done)

    def write(self, shard: int, scores: Mapping[str, Scores]) -> None:
        """Store scores of one shard; they are on disk when this returns.

        Args:
            shard: Number of the shard.
            scores: Arrays of shape (rows of the shard,) by name; NaN is stored as null.
        """
        positions = tuple(sorted(self._names.index(name) for name in scores))
        lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
        self._file(shard, positions).write(json.dumps({"scores": lists}).encode())
        self._shards.setdefault(positions, set()).add(shard)

    def read(self, shard: int) -> dict[str, Scores]:
        """Return all scores of a shard, arrays of shape (rows of the shard,)."""
        found = {}
        for positions in self._positions(shard):
            with self._file(shard, positions).open() as opened:
                found.update(json.load(opened)["scores"])
        return {name: np.array(found[name], dtype=np.float64) for name in self._names}

    def _positions(self, shard: int) -> list[tuple[int, ...]]:
        """Return the positions of the scores in each file of a shard."""
        return [positions for positions, shards in self._shards.items() if shard in shards]

    def _file(self, shard: int, positions: Sequence[int]) -> Location:
        return self.folder.child(f"{shard:08d}-{'.'.join(map(str, positions))}.json")

    def _on_disk(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the shard of each file, and the positions of the scores in it."""
        for file in self.folder.names():
            if found := _SHARD.fullmatch(file):
                positions = tuple(map(int, found[2].split(".")))
                if all(i < len(self._names) for i in positions):
                    yield int(found[1]), positions


def checksum(rows: Sequence[Row]) -> str:
    """Return the SHA-256 of rows, hexadecimal."""
    return hashlib.sha256(repr(rows).encode("utf-8", "backslashreplace")).hexdigest()


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, and the rest."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
