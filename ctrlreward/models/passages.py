"""Forty short passages about four topics, ten each."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

_FILE = resources.files("ctrlreward.models") / "passages.tsv"


class Passage(NamedTuple):
    """A prefix and the rest of its text, about one of the four topics."""

    topic: str
    prefix: str
    remainder: str

    @property
    def text(self) -> str:
        return f"{self.prefix} {self.remainder}"


def passages() -> list[Passage]:
    """Return all passages, by topic: computers, politics, religion, science."""
    with _FILE.open(encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Passage(**row) for row in rows]
