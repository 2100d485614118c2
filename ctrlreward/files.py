"""Crash-safe files: whole-or-absent files and folders, a resumable append-only log; JSON, YAML."""

from __future__ import annotations

import errno
import glob
import io
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, SupportsFloat

import numpy as np
import numpy.typing as npt
import yaml

from ctrlreward.ranks import fail_together, on_rank_zero

_UNTOUCHED = 3600.0  # seconds after which another machine's temporary file is a killed process's


def write_whole(path: Path, content: str | bytes) -> None:
    """Write or replace a file atomically, and sync it to disk; create its folders."""
    with whole_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def check_writable(path: Path) -> None:
    """Create the folders of a file, and raise if it can't be written: before its content is known.

    A ValueError if the path is a folder, an OSError if its folder can't be created or written to.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder, must be a file")
    unfinished = _prepared(path)
    unfinished.touch(exist_ok=False)
    unfinished.unlink()


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write in parts, which appears or replaces the old one whole, or never.

    Of several processes that write it at once, the last one's file stays.
    """
    with _named(path):
        unfinished = _prepared(path)
        try:
            with open(unfinished, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            _sync(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, and rename it to `path` at the end, synced to disk.

    An existing folder stays if filling raises or the process is killed. Between the last two
    renames it is `.NAME.PROCESS.replaced` in the same folder, which the next write puts back.
    """
    unfinished = _prepared(path)
    unfinished.mkdir()
    try:
        yield unfinished
        _put(unfinished, path)
    finally:
        remove_unfinished(path.parent, glob.escape(path.name))


def write_by_ranks(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file or folder that all ranks write together, whole or not at all, a collective.

    Args:
        path: The file or folder, the same on each rank. It is replaced as by `whole_folder`.
        write: Writes this rank's part at another path, which does not exist before.
    """
    unfinished = on_rank_zero(lambda: _prepared(path))
    try:
        fail_together(lambda: write(unfinished))
    except BaseException:
        with suppress(OSError):
            remove(unfinished)
        raise
    on_rank_zero(lambda: _put(unfinished, path))


def remove_at_once(path: Path) -> None:
    """Remove a folder; a process that is killed leaves it whole, or hidden parts of it."""
    unfinished = _prepared(path)
    path.rename(unfinished)
    shutil.rmtree(unfinished)


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove what killed processes did not finish, and put back what they were replacing.

    Those are files and folders; `name` is a pattern. What a process of this machine is writing
    stays, as does what one of another machine has written to in the last hour.
    """
    for what in ("replaced", "unfinished"):
        for leftover in folder.glob(f".{name}.*.{what}"):
            own, process, _ = leftover.name[1:].rsplit(".", 2)
            with suppress(FileNotFoundError):  # another process did the same
                if _may_run(process, leftover):
                    continue
                if what == "replaced" and not (folder / own).exists():
                    leftover.rename(folder / own)
                else:
                    remove(leftover)


def _prepared(path: Path) -> Path:
    """Return the temporary name of this process for `path`, free after what killed ones left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path.parent, glob.escape(path.name))
    return _beside(path, "unfinished")


def _put(unfinished: Path, path: Path) -> None:
    """Rename a finished file or folder, synced to disk, which replaces the one at `path`."""
    for each in (unfinished, *unfinished.rglob("*")):
        _sync(each)
    replaced = None
    if path.is_dir() or (path.exists() and unfinished.is_dir()):
        replaced = path.rename(_beside(path, "replaced"))
    unfinished.rename(path)
    _sync(path.parent)
    if replaced:
        remove(replaced.rename(unfinished))  # a part of it must not be put back


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    with suppress(OSError) if path.is_dir() else nullcontext():  # some systems sync no folders
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}.{what}")


def _machine() -> str:
    return platform.node().partition(".")[0]


def _may_run(process: str, leftover: Path) -> bool:
    """Return whether the process of a temporary name, other than this one, may be writing it."""
    machine, _, number = process.rpartition("-")
    if machine != _machine() or os.name != "posix":
        return time.time() - leftover.lstat().st_mtime < _UNTOUCHED
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(number) != os.getpid()


def parse_json(text: str | bytes, path: Path | str, first_line: int = 1) -> Any:
    """Parse one JSON value, which starts at a line of a file; a ValueError names file and line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line, why = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ValueError(f"{path}:{first_line + line - 1} is not JSON: {why}") from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the value of a JSON file; a ValueError names file and line."""
    return parse_json(Path(path).read_bytes(), Path(path))


def json_lines(
    lines: Iterable[str | bytes], path: Path | str, complete: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line that is not blank; a ValueError names file and line.

    Args:
        lines: Lines with their ends, such as a binary file; text would also end at U+2028.
        path: The name of the file in errors.
        complete: Whether to leave out a last line without its end, which a process may be writing.
    """
    for number, line in enumerate(lines, 1):
        if (value := line.strip()) and not (complete and line[-1:] not in ("\n", b"\n")):
            yield number, parse_json(value, path, number)


def read_jsonl(path: str | os.PathLike[str]) -> list[Any]:
    """Return the values of a file with one per line; see `json_lines`."""
    with open(path, "rb") as file:
        return [value for _, value in json_lines(file, Path(path))]


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the value of a YAML file of plain data; a ValueError names the file."""
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None


def finite_or_none(value: SupportsFloat) -> float | None:
    """Return a number for JSON: None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def none_for_nan(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Return numbers for JSON, shape (n,): None for NaN and infinity."""
    numbers = np.asarray(values, np.float64).astype(object)
    numbers[~np.isfinite(values)] = None
    return list(numbers)


def json_text(content: Any) -> str:
    """Return plain data as indented JSON: named tuples are objects, NaN and infinity null."""
    return json.dumps(without_nan(content), indent=2, ensure_ascii=False) + "\n"


def without_nan(value: Any) -> Any:
    """Return plain data for JSON: named tuples as mappings, NaN and infinity as None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return finite_or_none(value) if isinstance(value, float) else value


def json_line(record: Any) -> str:
    """Return a record as one line of JSON; only an unpaired surrogate is escaped."""
    line = json.dumps(record, ensure_ascii=False) + "\n"
    return line.encode(errors="backslashreplace").decode()


class JsonLog:
    """Append-only JSON Lines file that a resumed run continues.

    A last line that a killed process left incomplete is not read, and is removed by the next
    `append`.

    Args:
        path: The file; it and its folders are created by the first `append`.
        identity: JSON values that a resumed run must share, by name; kept as the first line. None
            for a log without such a line.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.identity = None if identity is None else json.loads(json.dumps(identity))

    def read(self) -> list[Any]:
        """Return all complete records without the identity; empty if the file is missing."""
        if not self.path.is_file():
            return []
        content = self.path.read_bytes()
        try:
            lines = json_lines(io.BytesIO(content), self.path, complete=True)
            records = [record for _, record in lines]
        except ValueError as error:
            raise self._not_a_log(f" ({error})") from None
        if self.identity is None:
            return records
        if not records:
            if not json_line(self.identity).encode().startswith(content):  # `append` would drop it
                raise self._not_a_log()
            return []
        started = records[0] if isinstance(records[0], dict) else {}
        if other := [name for name in self.identity if started.get(name) != self.identity[name]]:
            raise ValueError(
                f"{self.path} was started with other {', '.join(other)}. Resume with the same, or "
                "delete the file to start over."
            )
        return records[1:]

    def append(self, record: Any) -> None:
        """Write one record and sync it to disk."""
        with _named(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b") as file:
                _lock(file)
                end = file.seek(0, os.SEEK_END)
                if end:
                    file.seek(end - 1)
                    if file.read(1) != b"\n":  # half a line of a killed process
                        file.seek(0)
                        end = file.read().rfind(b"\n") + 1
                        file.truncate(end)
                if self.identity is not None and end == 0:
                    file.write(json_line(self.identity).encode())
                file.write(json_line(record).encode())
                file.flush()
                os.fsync(file.fileno())

    def replace(self, records: Iterable[Any]) -> None:
        """Replace all records atomically."""
        header = [] if self.identity is None else [self.identity]
        write_whole(self.path, "".join(map(json_line, [*header, *records])))

    def held(self) -> AbstractContextManager[None]:
        """Hold the log: a ValueError if another process does."""
        return hold(
            self.path.with_name(f".{self.path.name}.lock"),
            self.path,
            "Wait for its end.",
            temporary=True,
        )

    def _not_a_log(self, why: str = "") -> ValueError:
        return ValueError(
            f"{self.path} is not a JSON Lines log of this job{why}. Use another path, or delete it."
        )


@contextmanager
def hold(lock: Path, what: object, advice: str, temporary: bool = False) -> Iterator[None]:
    """Hold a lock file, which names the holder and is deleted at the end if it is `temporary`.

    Raises:
        ValueError: Another process holds it: `what` is in use. Ends with `advice`.
        OSError: The file can't be written.
    """
    from filelock import FileLock, Timeout  # imports asyncio

    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(lock).acquire(timeout=0)
        except Timeout:
            holder = lock.read_text(encoding="utf-8") or "another process"
            raise ValueError(f"{what} is in use by {holder}. {advice}") from None
        lock.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    except OSError as error:
        raise OSError(f"{what} can't be written: {error.strerror or error}") from None
    with held:
        try:
            yield
        finally:
            if temporary:
                with suppress(OSError):  # some systems can't delete an open file
                    lock.unlink()


def _lock(file: BinaryIO) -> None:
    """Wait for other writers of a file until it is closed, where the system has such locks."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


# A disk or a quota is full, a file is too large for its disk, or a disk is read only.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the name of the file, and advice, to an error of a write."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            error.filename = error.filename or str(path)
            if not getattr(error, "__notes__", []):
                note = "Earlier files are complete. Free space, or write elsewhere, and resume."
                error.add_note(note)
        raise


def remove(path: Path) -> None:
    """Remove a file, or a folder without following links."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
