"""Scores of an unfinished run on disk: a manifest and a file for each shard, or one log."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ctrlreward.files import JsonLog, finite_or_none, parse_json
from ctrlreward.progress import track
from ctrlreward.scorers.base import Scores
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import Row

T = TypeVar("T")

_SHARD = re.compile(r"(\d+)-([\d.]+)\.json")


@dataclass(frozen=True)
class Manifest:
    """Settings of a run, JSON values that a resumed run must share, and the shards of its corpus.

    `chunk` is the rows of each shard but the last, `checksums` the SHA-256 of each shard's rows.
    """

    settings: Mapping[str, Any]
    chunk: int
    rows: int
    checksums: Sequence[str]

    def range(self, shard: int) -> range:
        """Return the rows of a shard in the corpus."""
        return range(shard * self.chunk, min((shard + 1) * self.chunk, self.rows))


class ShardStore:
    """Folder with the scores of finished shards.

    A file has some scores of one shard, `{"coherence": [-1.5, null]}`. Its name has the shard and
    the positions of the scores in `names` (`00000003-0.1.json`), since a run resumed on other
    devices may group scorers differently.
    """

    def __init__(self, folder: Location, names: Sequence[str]) -> None:
        self.folder = folder
        self._manifest = folder.child("manifest.json")
        self._names = list(names)
        # Shards by the positions of the scores in their files: tens of bytes per file.
        self._shards: dict[tuple[int, ...], set[int]] = {}
        for file in folder.names():
            if found := _SHARD.fullmatch(file):
                positions = tuple(map(int, found[2].split(".")))
                if all(i < len(self._names) for i in positions):
                    self._shards.setdefault(positions, set()).add(int(found[1]))

    def manifest(self) -> Manifest | None:
        """Return the manifest of the run; None if there is none."""
        if not self._manifest.exists():
            return None
        with self._manifest.open() as opened:
            try:
                return Manifest(**parse_json(opened.read(), str(self._manifest)))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._manifest} is not a manifest of shards ({error}). Delete the folder to "
                    "start over."
                ) from None

    def start(self, manifest: Manifest) -> None:
        """Write the manifest of a run."""
        with self._manifest.whole_file() as file:
            file.write(json.dumps(asdict(manifest), indent=0, ensure_ascii=False).encode())

    def drop(self, shards: Collection[int], names: Collection[str]) -> None:
        """Delete some scores of some shards, and other scores in the same files."""
        for positions, done in self._shards.items():
            if any(self._names[i] in names for i in positions):
                for shard in done.intersection(shards):
                    self._file(shard, positions).remove()
                    done.remove(shard)

    def missing(self, shard: int, names: Sequence[str]) -> tuple[str, ...]:
        """Return the named scores of a shard that are not on disk."""
        done = {self._names[i] for positions in self._positions(shard) for i in positions}
        return tuple(name for name in names if name not in done)

    def write(self, shard: int, scores: Mapping[str, Scores]) -> None:
        """Store arrays of shape (rows of the shard,) by name; on return they are on disk."""
        positions = tuple(sorted(self._names.index(name) for name in scores))
        lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
        with self._file(shard, positions).whole_file() as file:
            file.write(json.dumps(lists).encode())
        self._shards.setdefault(positions, set()).add(shard)

    def read(self, shard: int) -> dict[str, Scores]:
        """Return all scores of a shard, arrays of shape (rows of the shard,)."""
        found: dict[str, Scores] = {}
        for positions in self._positions(shard):
            file = self._file(shard, positions)
            with file.open() as opened:
                try:
                    stored = parse_json(opened.read(), str(file)).items()
                    found |= {name: np.array(values, np.float64) for name, values in stored}
                except (AttributeError, TypeError, ValueError) as error:
                    raise ValueError(
                        f"{file} is damaged or was cut off ({error}). Delete it and repeat the "
                        "command, which scores its rows again."
                    ) from None
        return {name: found[name] for name in self._names}

    def _positions(self, shard: int) -> list[tuple[int, ...]]:
        """Return the positions of the scores in each file of a shard."""
        return [positions for positions, shards in self._shards.items() if shard in shards]

    def _file(self, shard: int, positions: Sequence[int]) -> Location:
        return self.folder.child(f"{shard:08d}-{'.'.join(map(str, positions))}.json")


def score_parts(
    log: JsonLog,
    parts: Sequence[Sequence[int]],
    score: Callable[[list[int]], Mapping[str, Scores]],
) -> dict[str, Scores]:
    """Score rows part by part, continuing where a log ends; return all scores by row.

    Each of n rows is in one part; a score has shape (n,), and is NaN where it failed.
    """
    records: list[dict[str, list[float | None]]] = log.read()
    sizes = list(map(len, parts))
    with track("scoring", sum(sizes), done=sum(sizes[: len(records)])) as advance:
        for rows in parts[len(records) :]:
            scores = score(list(rows)).items()
            records.append({k: [finite_or_none(v) for v in values] for k, values in scores})
            log.append(records[-1])
            advance(len(rows))
    rows_in_order = np.argsort([row for rows in parts for row in rows])
    return {
        name: np.array([v for record in records for v in record[name]], np.float64)[rows_in_order]
        for name in records[0]
    }


def checksum(rows: Sequence[Row]) -> str:
    """Return the SHA-256 of rows, hexadecimal."""
    return hashlib.sha256(repr(rows).encode("utf-8", "backslashreplace")).hexdigest()


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, and the rest."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
