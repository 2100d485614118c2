from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "ctrlreward.scorers.readability"


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's diff applied to the files it touches, and the scorer importable."""
    page = (ROOT / "docs" / "write_your_own_scorer.md").read_text("utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```\n", page, re.DOTALL)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "scorers.md", tmp_path / "docs")
    subprocess.run(["git", "apply"], input=diff.encode(), cwd=tmp_path, check=True)
    spec = importlib.util.spec_from_file_location(
        NAME, tmp_path / "ctrlreward" / "scorers" / "readability.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the folder holds the diff's files only
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, NAME, module)
    return tmp_path


def test_the_diff_touches_one_scorer_one_test_and_the_docs(changed: Path) -> None:
    files = {str(file.relative_to(changed)) for file in changed.rglob("*") if file.is_file()}
    assert files == {
        "ctrlreward/scorers/readability.py",
        "docs/scorers.md",
        "tests/scorers/test_readability.py",
    }


def test_the_tests_in_the_diff_pass(changed: Path, caplog: pytest.LogCaptureFixture) -> None:
    tests = runpy.run_path(str(changed / "tests" / "scorers" / "test_readability.py"))
    tests["test_equals_the_formula"]()
    tests["test_an_empty_text_is_nan"](caplog)
