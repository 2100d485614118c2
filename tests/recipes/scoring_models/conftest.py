from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def in_an_empty_folder(data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, with the data of the configurations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
