"""An empty folder to work in, commands that fail, and tables of texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with the scorers of `fakes` importable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TESTS)


@pytest.fixture
def refused(fails: Callable[..., str]) -> Callable[..., str]:
    """Return a function that runs a `score` that fails, and returns its error as one line."""
    return lambda *arguments: " ".join(fails("score", *arguments).split())


def write_jsonl(name: str, records: Sequence[Any]) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))
