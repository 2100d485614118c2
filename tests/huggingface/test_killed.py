"""Runs of real trainers that are killed, and resumed from the last whole checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(
    tiny_llama: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
    run_script: Callable[..., None],
) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    script = Path(__file__).with_name("killed_runs.py")
    run_script(script, folder, tiny_llama("abcdef"), timeout=300)
    return folder


@pytest.mark.parametrize("kill", ["scoring", "saving"])
def test_a_killed_run_decides_as_an_uncut_one(folder: Path, kill: str) -> None:
    codes = json.loads((folder / "codes.json").read_text())
    assert codes["uncut"] == codes[f"{kill}, resumed"] == 0
    assert codes[kill] == -9
    uncut, resumed = (
        json.loads((folder / name / "found.json").read_text()) for name in ("uncut", kill)
    )
    assert resumed == uncut  # decisions, the weights that were loaded at the end, all texts
    assert uncut["decided"]["steps"] > 4  # the step of the kill
    assert len(set(uncut["texts"].values())) > 2
