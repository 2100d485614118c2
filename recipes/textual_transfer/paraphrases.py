"""Paraphrase pairs of eq. 5: from a file, or a stand-in made from the training sentences."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ctrlreward.recipes.text_files import matching_key, read_lines


@dataclass(frozen=True)
class Paraphrases:
    """Paraphrase pairs ⟨u, v⟩ of the loss of eq. 5.

    Args:
        file: File of one pair per line, `u<TAB>v`; None for the stand-in.
        count: Largest number of pairs.
        seed: Seed of the choice.
    """

    file: str | None = None
    count: int = 90_000
    seed: int = 0

    def pairs(self, sentences: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs."""
        if self.file is None:
            raise NotImplementedError
        found = [(u, v) for u, v in _read(self.file) if u not in v and v not in u]
        return random.Random(self.seed).sample(found, min(self.count, len(found)))


def _read(file: str) -> Iterator[tuple[str, str]]:
    for line in read_lines([file]):
        u, v = line.split("\t")
        yield matching_key(u), matching_key(v)
