"""Manifest of a corpus: how it is cut into shards, and what a resumed run must find again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice, pairwise, zip_longest
from typing import Any, TypeVar

from ctrlreward.tables.row_streams import Row

T = TypeVar("T")


@dataclass(frozen=True)
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


def checksum(rows: Sequence[Row]) -> str:
    """Return the SHA-256 of rows, hexadecimal."""
    return hashlib.sha256(repr(rows).encode("utf-8", "backslashreplace")).hexdigest()


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, and the rest."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
