from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def in_a_checkout(data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder whose `../shared/data` is the data, where configurations look."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "data").symlink_to(data_dir)
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
