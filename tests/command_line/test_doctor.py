"""`ctrlreward doctor`: what it says of this machine, and of others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ctrlreward.cli import main
from ctrlreward.extras import EXTRA_OF, PURPOSES
from ctrlreward.models.cache import build_once


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the lines of the report by their title."""
    main(["doctor"])
    title, *parts = re.split(r"^(?! )(.+)\n", capsys.readouterr().out, flags=re.MULTILINE)
    assert title == ""
    return {
        title: [line.strip() for line in lines.splitlines()]
        for title, lines in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_extra_has_a_purpose() -> None:
    assert set(PURPOSES) == set(EXTRA_OF.values())


def test_built_in_weights_are_here_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path))
    folder = build_once("minilm-l6-0.1.0", lambda folder: None)

    weights = dict(line.split(": ") for line in report(capsys)["built-in weights"])

    assert weights["minilm-l6"] == str(folder)
    assert weights["smollm2-135m"].startswith("not here")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [
        folder.name
    ]
