from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrlreward.files import whole_folder, write_whole


def test_a_file_and_its_folders(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.txt"
    write_whole(file, "Grüße\r\n")
    assert file.read_bytes() == "Grüße\r\n".encode()
    write_whole(file, b"\x00")
    assert file.read_bytes() == b"\x00"
    assert os.listdir(file.parent) == ["b.txt"]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_whole(tmp_path / "taken", "")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with whole_folder(tmp_path / "up" / "model") as folder:
            (folder / content).touch()
            assert not (tmp_path / "up" / "model" / content).exists()
    assert os.listdir(tmp_path / "up") == ["model"]
    assert os.listdir(tmp_path / "up" / "model") == ["second"]


def test_a_folder_that_could_not_be_filled_leaves_the_old_one(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "model") as folder:
        (folder / "weights").touch()
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "model") as folder:
        (folder / "missing").rename(folder / "half")
    assert os.listdir(tmp_path) == ["model"]
    assert os.listdir(tmp_path / "model") == ["weights"]


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".model.unfinished" / "old").mkdir(parents=True)
    (tmp_path / ".model.replaced").mkdir()
    with whole_folder(tmp_path / "model") as folder:
        assert os.listdir(folder) == []
    assert os.listdir(tmp_path) == ["model"]
