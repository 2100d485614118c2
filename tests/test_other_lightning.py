"""The tests with the mark `lightning` once more, with callbacks and trainers of `lightning`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def marked_files() -> list[str]:
    folders = [ROOT / "tests" / name for name in ("callbacks", "policy")]
    paths = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    return [str(path) for path in paths if "mark.lightning" in path.read_text("utf-8")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("expression", "files"),
    [
        pytest.param("lightning and not soak", marked_files(), id="marked"),
        pytest.param(
            "not soak",
            [str(ROOT / "tests" / "callbacks" / "test_distributed.py")],
            marks=pytest.mark.soak,
            id="two ranks",
        ),
    ],
)
def test_tests_pass_under_lightning_as_well(expression: str, files: list[str]) -> None:
    """In a process of their own: a trainer of one package refuses callbacks of the other."""
    assert files
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--numprocesses", "0", "-m", expression, *files],
        cwd=ROOT,
        env={**os.environ, "CTRLREWARD_LIGHTNING": "lightning"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout
