"""`ctrlreward doctor`: what it says of this machine, and of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrlreward.cli import main
from ctrlreward.extras import EXTRA_OF, PURPOSES
from ctrlreward.models.cache import build_once


def test_every_extra_has_a_purpose() -> None:
    assert set(PURPOSES) == set(EXTRA_OF.values())


def test_built_in_weights_are_here_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path))
    folder = build_once("minilm-l6-0.1.0", lambda folder: None)
    main(["doctor"])
    printed = capsys.readouterr().out
    assert f"minilm-l6: {folder}\n" in printed
    assert "smollm2-135m: not here" in printed
    assert [path for path in tmp_path.iterdir() if path.name[0] != "."] == [folder]
