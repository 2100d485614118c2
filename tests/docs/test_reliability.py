"""Each row of docs/reliability.md has a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
COMMANDS = sorted(set(re.findall(r"`(tests/\S+\.py)(?: -k \"?([^`\"]+)\"?)?`", PAGE)))


@pytest.mark.parametrize(("file", "words"), COMMANDS)
def test_the_test_of_a_row_exists(file: str, words: str) -> None:
    names = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
    assert names
    for word in words.split(" or ") if words else ():
        assert any(word in name for name in names), (word, names)


def test_each_row_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not re.match(r"\| (fault|a scorer|input) \|", row)]
    assert len(rows) > 40
    for row in rows:
        assert "`tests/" in row or "by hand" in row, row
