"""Scores of an unfinished run: a file per shard, and the manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from ctrlreward.commands.shards.manifest import Manifest
from ctrlreward.scorers.base import Scores
from ctrlreward.tables.locations import Location

_MANIFEST = "manifest.json"
_SHARD = re.compile(r"(\d+)-([\d.]+)\.json")


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
        self._files: dict[int, dict[str, str]] = {}  # by shard: file of each score
        for file, shard, positions in self._on_disk():
            self._note(shard, positions, file)

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
        for file, shard, positions in self._on_disk():
            if shard in shards and any(self._names[i] in names for i in positions):
                self.folder.child(file).remove()
                kept = {n: f for n, f in self._files[shard].items() if f != file}
                self._files[shard] = kept

    def missing(self, shard: int, names: Sequence[str]) -> tuple[str, ...]:
        """Return the scores of a shard, of those named, that are not on disk."""
        return tuple(name for name in names if name not in self._files.get(shard, {}))

    def write(self, shard: int, scores: Mapping[str, Scores]) -> None:
        """Store scores of one shard; they are on disk when this returns.

        Args:
            shard: Number of the shard.
            scores: Arrays of shape (rows of the shard,) by name; NaN is stored as null.
        """
        positions = sorted(self._names.index(name) for name in scores)
        file = f"{shard:08d}-{'.'.join(map(str, positions))}.json"
        lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
        self.folder.child(file).write(json.dumps({"scores": lists}).encode())
        self._note(shard, positions, file)

    def read(self, shard: int) -> dict[str, Scores]:
        """Return all scores of a shard, arrays of shape (rows of the shard,)."""
        found = {}
        for file in dict.fromkeys(self._files[shard].values()):
            with self.folder.child(file).open() as opened:
                found.update(json.load(opened)["scores"])
        return {name: np.array(found[name], dtype=np.float64) for name in self._names}

    def _on_disk(self) -> Iterator[tuple[str, int, list[int]]]:
        """Yield the name, the shard and the positions of the scores of each file."""
        for file in self.folder.names():
            if found := _SHARD.fullmatch(file):
                positions = [int(i) for i in found[2].split(".")]
                yield file, int(found[1]), [i for i in positions if i < len(self._names)]

    def _note(self, shard: int, positions: Sequence[int], file: str) -> None:
        self._files.setdefault(shard, {}).update({self._names[i]: file for i in positions})
