from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fakes import left_by_killed
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.files import (
    JsonLog,
    check_writable,
    hold,
    read_jsonl,
    remove_at_once,
    whole_file,
    whole_folder,
    write_by_ranks,
    write_whole,
)


def test_a_file_and_its_folders(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.txt"
    write_whole(file, "Grüße\r\n")
    assert file.read_bytes() == "Grüße\r\n".encode()
    write_whole(file, b"\x00")
    assert file.read_bytes() == b"\x00"
    assert os.listdir(file.parent) == ["b.txt"]


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    own = left_by_killed(out).name.replace(str(2**22 + 1), str(os.getpid()))
    for name in ("victim", "absent"):
        (tmp_path / "victim").write_text("precious")
        for link in (left_by_killed(out), left_by_killed(out).with_name(own)):
            link.symlink_to(name)
            check_writable(out)
            link.symlink_to(name)
            write_whole(out, "new")
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "victim"]
    assert (tmp_path / "victim").read_text() == "precious"


def test_blank_lines_of_json_lines_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('1\n\n \r\n"Grüße\u2028"\n[2]')
    assert read_jsonl(tmp_path / "a.jsonl") == [1, "Grüße\u2028", [2]]
    (tmp_path / "a.jsonl").write_text('1\n\n{"a": \n')
    with pytest.raises(ValueError, match=r"a\.jsonl:3 "):
        read_jsonl(tmp_path / "a.jsonl")


def test_a_folder_takes_the_place_of_another_or_leaves_it(tmp_path: Path) -> None:
    model = tmp_path / "up" / "model"
    (left_by_killed(model) / "old").mkdir(parents=True)
    left_by_killed(model, "replaced").mkdir()
    for content in ("first", "second"):
        with whole_folder(model) as folder:
            assert os.listdir(folder) == []
            (folder / content).touch()
            assert not (model / content).exists()
    with pytest.raises(FileNotFoundError), whole_folder(model) as folder:
        (folder / "missing").rename(folder / "half")
    assert os.listdir(model.parent) == ["model"]
    assert os.listdir(model) == ["second"]


def test_of_two_writers_the_last_file_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions.json"
    with whole_file(path) as file:
        file.write(b"half of ")
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", os.getppid)  # another process, which is alive
            write_whole(path, "theirs")
        assert path.read_text() == "theirs"
        file.write(b"ours")
    assert path.read_text() == "half of ours"
    assert os.listdir(tmp_path) == ["decisions.json"]


def killed_while_replacing(path: Path, renames: int) -> None:
    """Replace a folder in a process that is killed at a rename, or by 0 while it fills the new."""

    def write() -> None:
        done = iter(range(1, 9))
        rename = Path.rename

        def renamed(self: Path, target: Path) -> Path:
            if path in (self, target) and next(done) == renames:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)

        Path.rename = renamed  # type: ignore[method-assign, assignment]
        with whole_folder(path) as folder:
            (folder / "new").touch()
            if not renames:
                os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_two_kills_leave_a_copy(tmp_path: Path) -> None:
    """The first after the old folder was renamed, the second while the next run fills another."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "old").touch()
    killed_while_replacing(model, 2)
    killed_while_replacing(model, 0)
    assert os.listdir(model) == ["old"]
    with whole_folder(model) as folder:
        (folder / "new").touch()
    assert os.listdir(model) == ["new"]
    assert os.listdir(tmp_path) == ["model"]


def test_files_and_their_names_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = set[int](), os.fsync

    def recorded(file: Any) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, "fsync", recorded)
    write_whole(tmp_path / "a" / "file", "content")
    with whole_folder(tmp_path / "b" / "folder") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").touch()
    assert synced >= {each.stat().st_ino for each in tmp_path.rglob("*")}


def test_a_log_keeps_every_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "up" / "log.jsonl"
    log = JsonLog(path)
    assert log.read() == []
    for record in ({"a": 1}, ["Grüße\u2028"]):
        log.append(record)
    with open(path, "ab") as file:
        file.write(b'{"torn": ')
    assert JsonLog(path).read() == [{"a": 1}, ["Grüße\u2028"]]
    assert path.read_bytes().endswith(b'torn": ')  # reading changes nothing
    JsonLog(path).append(3)
    assert log.read() == [{"a": 1}, ["Grüße\u2028"], 3]
    log.replace([4])
    assert log.read() == [4]


def test_a_line_that_another_process_is_writing_is_waited_for(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "log.jsonl")
    with open(log.path, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b'{"ours": ')
        thread = threading.Thread(target=log.append, args=["theirs"])
        thread.start()
        thread.join(0.2)
        file.write(b"1}\n")
    thread.join()
    assert log.read() == [{"ours": 1}, "theirs"]


@given(st.lists(st.integers(0, 99), max_size=6), st.integers(0, 60))
def test_a_log_cut_anywhere_goes_on_from_a_prefix(records: list[int], cut: int) -> None:
    with TemporaryDirectory() as folder:
        log = JsonLog(Path(folder) / "log.jsonl", {"run": "x"})
        for record in records:
            log.append(record)
        if records:
            content = log.path.read_bytes()[:cut]
            log.path.write_bytes(content)
            kept = log.read()
            assert kept == records[: len(kept)]
            log.append(7)
            assert JsonLog(log.path, {"run": "x"}).read() == [*kept, 7]


def test_a_log_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    JsonLog(path, {"model": "a", "seed": (0, 1)}).append(1)
    assert JsonLog(path, {"model": "a", "seed": [0, 1]}).read() == [1]
    with pytest.raises(ValueError, match=r"log\.jsonl .*model"):
        JsonLog(path, {"model": "b", "seed": [0, 1]}).read()


@pytest.mark.parametrize("content", ["of somebody else", "years\nof work\n", '{"model": "b"'])
def test_a_file_that_is_no_log_of_this_job_is_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match="thesis"):
        JsonLog(path, {"model": "a"}).read()
    assert path.read_text() == content


# Full disks


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let files of this process grow up to a size: a write beyond it fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(st.integers(0, 140))
def test_a_full_disk_is_named_and_leaves_the_old_file_and_all_rows(size: int) -> None:
    with TemporaryDirectory() as name:
        file, log = Path(name, "file"), JsonLog(Path(name, "log.jsonl"), {"job": 1})
        write_whole(file, "old")
        rows = [{"row": i, "text": "soup" * i} for i in range(6)]
        written = []
        said = []
        with room_for(size):
            try:
                write_whole(file, "new " * 30)
                for row in rows:
                    log.append(row)
                    written.append(row)
            except OSError as error:
                said = [str(error), *error.__notes__]
        assert said[0].endswith(f"{log.path if size >= 120 else file}'")
        assert len(said) == 2
        assert file.read_text() == ("new " * 30 if size >= 120 else "old")
        assert sorted(os.listdir(name)) in (["file"], ["file", "log.jsonl"])
        assert log.read() == written
        for row in rows[len(written) :]:  # with space again
            log.append(row)
        assert log.read() == rows


def test_a_lock_that_can_not_be_written_names_what_it_protects() -> None:
    with pytest.raises(OSError, match=r"^out\.jsonl"), hold(Path("/proc/l"), "out.jsonl", ""):
        pass


def test_ranks_replace_a_folder_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "last"

    def write(new: Path) -> None:
        new.mkdir()
        (new / "shard").write_text(str(path.exists()))

    write_by_ranks(path, write)
    assert (path / "shard").read_text() == "False"

    def fail(new: Path) -> None:
        write(new)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_by_ranks(path, fail)
    assert (path / "shard").read_text() == "False"
    write_by_ranks(path, write)
    assert (path / "shard").read_text() == "True"
    assert [each.name for each in tmp_path.iterdir()] == ["last"]


def test_a_folder_that_was_not_removed_to_its_end_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best"
    path.mkdir()
    (path / "shard").touch()

    def fails(folder: Path, ignore_errors: bool = False) -> None:
        if folder.exists():
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", fails)
        with pytest.raises(OSError, match="killed"):
            remove_at_once(path)
    assert [each.name.split(".")[-1] for each in tmp_path.iterdir()] == ["unfinished"]
    path.mkdir()
    remove_at_once(path)
    assert list(tmp_path.iterdir()) == []
