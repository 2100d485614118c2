"""The tests with the mark `lightning` once more, with callbacks and trainers of `lightning`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.timeout(600)
def test_marked_tests_pass_under_lightning_as_well() -> None:
    """In a process of their own: a trainer of one package refuses callbacks of the other."""
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "0"]
    folders = [ROOT / "tests" / name for name in ("callbacks", "policy")]
    files = [str(path) for folder in folders for path in sorted(folder.rglob("test_*.py"))
             if "mark.lightning" in path.read_text("utf-8")]  # fmt: skip
    assert len(files) > 10
    done = subprocess.run(
        [*command, "-m", "lightning and not soak", *files],
        cwd=ROOT,
        env={**os.environ, "CTRLREWARD_LIGHTNING": "lightning"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout
