"""The tests with the mark `lightning` once more, with callbacks and trainers of `lightning`."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_python import run_warm

ROOT = Path(__file__).resolve().parent.parent


def marked_files() -> list[str]:
    folders = [ROOT / "tests" / name for name in ("callbacks", "policy")]
    paths = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    return [str(path) for path in paths if "mark.lightning" in path.read_text("utf-8")]


# In a fork, which has imported the rest; our helpers chose the other package.
SCRIPT = """
import sys
import pytest
tests, *arguments = sys.argv[1:]
for name, module in [*sys.modules.items()]:
    if str(getattr(module, "__file__", "")).startswith(tests):
        del sys.modules[name]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--numprocesses", "0", "-m", *arguments]))
"""


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
def test_tests_pass_under_lightning_as_well(
    expression: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of their own: a trainer of one package refuses callbacks of the other."""
    assert files
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CTRLREWARD_LIGHTNING", "lightning")
    (tmp_path / "main.py").write_text(SCRIPT)
    done = run_warm(tmp_path / "main.py", ROOT / "tests", expression, *files, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout
