"""Files that are not on this machine."""

from __future__ import annotations

from contextlib import suppress

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
