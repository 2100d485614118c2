"""The change that docs/scorers.md makes."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "ctrlreward.scorers.readability"


@pytest.fixture
def changed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's diff applied to the files it touches, and the scorer importable."""
    folder = tmp_path_factory.mktemp("changed")
    page = (ROOT / "docs" / "scorers.md").read_text("utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```\n", page, re.DOTALL)
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "scorers.md", folder / "docs")
    subprocess.run(["git", "apply"], input=diff.encode(), cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "ctrlreward" / "scorers" / "readability.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the folder holds the diff's files only
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, NAME, module)
    return folder
