"""Files and their names, also on other machines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import fsspec
import pytest

from ctrlreward.tables.locations import Location


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_remote_file_is_replaced_whole_or_not_at_all(before: bytes | None) -> None:
    memory = fsspec.filesystem("memory")
    file = Location(f"memory://locations/{before!r}/out.txt")
    if before is not None:
        with file.whole_file() as opened:
            opened.write(before)

    def found() -> bytes | None:
        return memory.cat(file._inner) if file.exists() else None

    with suppress(ZeroDivisionError), file.whole_file() as opened:
        opened.write(b"half of it")
        assert found() == before
        raise ZeroDivisionError
    assert found() == before
    with file.whole_file() as opened:
        opened.write(b"all of it")
    assert found() == b"all of it"
    assert file.beside("other").names() == []
    assert Location(f"memory://locations/{before!r}").names() == ["out.txt"]


@pytest.mark.parametrize("name", ["a::b.jsonl", "data:c.jsonl", "file:d.jsonl", "~/e.jsonl"])
def test_what_is_written_under_a_name_is_read_under_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Location(name).whole_file() as opened:
        opened.write(b"rows")
    assert (tmp_path / name.removeprefix("~/")).read_bytes() == b"rows"
    with Location(name).open() as opened:
        assert opened.read() == b"rows"
    assert Location(tmp_path).child(name.removeprefix("~/")).exists()


def test_files_of_a_folder_may_be_links(tmp_path: Path) -> None:
    """As in a snapshot of the hub's cache."""
    (tmp_path / "blob").write_text("")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "rows.jsonl").symlink_to("../blob")
    assert Location(tmp_path / "folder").names() == ["rows.jsonl"]
    assert Location(tmp_path / "nowhere").names() == []
