"""Downloads from a server on this machine, which cuts, changes and refuses what it serves."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ctrlreward.cli import main
from ctrlreward.data import catalogue, find, local_file
from ctrlreward.data.catalogue import DataFile, DataSet

CONTENT = "".join(f"sentence {i} was written for this test .\n" for i in range(5000)).encode()


@dataclass
class Site:
    """What the server does; the starts of the parts that were asked for."""

    content: dict[str, bytes]
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes of each reply before the connection ends
    pause: float = 0.0  # seconds after each 10 kB
    starts: list[int] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site({"/set/texts.txt": CONTENT})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = served.content.get(self.path)
            if body is None:
                self.send_error(404)
                return
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked[1]) if asked and served.ranges else 0
            served.starts.append(start)
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if asked and served.ranges else 200)
            if asked and served.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = start + served.cuts.pop(0) if served.cuts else len(body)
            for place in range(start, min(end, len(body)), 10_000):
                self.wfile.write(body[place : min(place + 10_000, end)])
                time.sleep(served.pause)
            if end < len(body):
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    served.address = f"http://127.0.0.1:{server.server_port}"
    yield served
    server.shutdown()
    server.server_close()


@pytest.fixture
def texts(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFile:
    """A file of a data set that the server has, and which is not on this machine."""
    monkeypatch.setenv("CTRLREWARD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ctrlreward.data.download._ATTEMPTS", 3)
    file = DataFile(
        data_set="set",
        name="texts.txt",
        place="set/texts.txt",
        address=f"{site.address}/set/texts.txt",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        git_blob=None,
    )
    data_set = DataSet("set", site.address, "Apache-2.0", "nobody", {"texts.txt": file})
    monkeypatch.setattr(catalogue, "DATA_SETS", {**catalogue.DATA_SETS, "set": data_set})
    return file


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_a_name_becomes_a_checked_file_that_is_downloaded_once(site: Site, texts: DataFile) -> None:
    for _ in range(2):
        assert local_file("set/texts.txt") == texts.path
    assert texts.path.read_bytes() == CONTENT
    assert (site.starts, files_in(texts.path.parent)) == ([0], {"texts.txt"})


@pytest.mark.parametrize(
    ("ranges", "cuts", "starts"),
    [(True, [50_000, 30_000], [0, 50_000, 80_000]), (False, [50_000], [0, 0])],
)
def test_a_connection_that_breaks_is_continued_by_a_server_with_ranges(
    site, texts, ranges, cuts, starts
) -> None:
    site.ranges, site.cuts = ranges, cuts
    assert texts.get().read_bytes() == CONTENT
    assert site.starts == starts


def test_a_later_call_continues_one_that_gave_up(site: Site, texts: DataFile) -> None:
    site.cuts = [10_000, 10_000, 10_000]
    with pytest.raises(OSError, match=r"could not be downloaded .*peer closed connection"):
        texts.get()
    assert files_in(texts.path.parent) == {".texts.txt.partial"}
    assert texts.get().read_bytes() == CONTENT
    assert site.starts == [0, 10_000, 20_000, 30_000]


@pytest.mark.parametrize("known", ["sha256", "git_blob"])
def test_changed_content_is_refused(known, site, texts, monkeypatch) -> None:
    blob = subprocess.run(
        ["git", "hash-object", "--stdin"], input=CONTENT, capture_output=True, check=True
    ).stdout.decode()
    if known == "git_blob":
        texts = DataFile("set", "texts.txt", texts.place, texts.address, None, None, blob.strip())
    site.content["/set/texts.txt"] = CONTENT.replace(b"sentence 7 ", b"sentence 8 ")
    expected = {"sha256": str(texts.sha256), "git_blob": blob.strip()}[known]
    with pytest.raises(OSError, match=rf"has .*, expected {expected}, so it is not the published"):
        texts.get()
    assert files_in(texts.path.parent) == set()
    site.content["/set/texts.txt"] = CONTENT
    assert texts.get().read_bytes() == CONTENT


def test_parts_that_do_not_fit_are_downloaded_anew(site: Site, texts: DataFile) -> None:
    partial = texts.path.with_name(".texts.txt.partial")
    for started in (b"x" * 40_000, CONTENT + b"x", b"y" * len(CONTENT)):
        site.starts.clear()
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(started)
        assert texts.get().read_bytes() == CONTENT
        assert site.starts[-1] == 0
        texts.path.unlink()


def test_a_killed_process_is_continued_by_the_next(site, texts, tmp_path) -> None:
    site.pause = 0.1
    script = (
        "import sys; from pathlib import Path; from ctrlreward.data.download import download\n"
        "download('set/texts.txt', sys.argv[1], Path(sys.argv[2]))"
    )
    texts.path.parent.mkdir(parents=True)
    child = subprocess.Popen([sys.executable, "-c", script, str(texts.address), str(texts.path)])
    partial = texts.path.with_name(".texts.txt.partial")
    while not partial.is_file() or partial.stat().st_size < 20_000:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert files_in(texts.path.parent) == {".texts.txt.partial"}
    site.pause = 0.0
    assert texts.get().read_bytes() == CONTENT
    assert len(site.starts) == 2
    assert site.starts[1] >= 20_000


def test_several_at_once_download_it_once(site: Site, texts: DataFile) -> None:
    site.pause = 0.01
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: texts.get(), range(4)))
    assert set(paths) == {texts.path}
    assert site.starts == [0]


def test_offline_the_error_names_address_file_and_folder(site, texts, monkeypatch) -> None:
    monkeypatch.setenv("CTRLREWARD_DATA_MIRROR", "http://127.0.0.1:9/")  # where nothing listens
    with pytest.raises(OSError, match="ConnectError") as raised:
        texts.get()
    message = str(raised.value)
    assert message.startswith(
        "set/texts.txt could not be downloaded from http://127.0.0.1:9/set/texts.txt (ConnectError"
    )
    assert message.endswith(
        "Check the connection and the proxy, or place the file by hand: texts.txt in the folder "
        f"{texts.path.parent}"
    )
    texts.path.write_bytes(b"by hand\n")
    assert local_file("set/texts.txt").read_bytes() == b"by hand\n"
    assert texts.problem(texts.path) == f"has 8 bytes, expected {len(CONTENT):,}"
    assert site.starts == []


def test_a_file_that_the_server_does_not_have_is_named(site: Site, texts: DataFile) -> None:
    site.content.clear()
    with pytest.raises(OSError, match=rf"{re.escape(str(texts.address))} \(HTTP 404 Not Found\)"):
        texts.get()


def test_a_folder_that_cannot_be_written_is_named(texts: DataFile) -> None:
    texts.path.parent.parent.write_text("a file where the folder should be")
    with pytest.raises(
        OSError, match=r"set/texts.txt can't be written to \S+set .*CTRLREWARD_DATA"
    ):
        texts.get()


@pytest.mark.parametrize(
    "name", ["set/../secret", "set//etc/passwd", "set/./texts.txt", "set/TEXTS.txt", "set/"]
)
def test_names_outside_the_data_set_are_refused(name, texts, tmp_path, monkeypatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret").write_text("secret")
    monkeypatch.chdir(tmp_path)
    for read in (local_file, find):
        with pytest.raises(ValueError, match="data set 'set' has no file"):
            read(name)


def test_paths_stay_paths(texts: DataFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "own.txt").write_text("own")
    for path in ("./set/texts.txt", "set/own.txt", "other/texts.txt", "texts.txt", "set"):
        assert local_file(path) == Path(path)
    assert local_file("~/texts.txt") == Path.home() / "texts.txt"
    assert local_file("set/texts.txt") == texts.path


def test_the_command_lists_gets_and_finds(site, texts, fails, capsys, monkeypatch) -> None:
    monkeypatch.setattr("ctrlreward.jobs.data.DATA_SETS", catalogue.DATA_SETS)

    def printed(*arguments: str) -> str:
        main(["data", *arguments])
        return capsys.readouterr().out

    assert printed("where") == f"{texts.path.parent.parent}\n"
    assert printed("where", "set") == f"{texts.path}\n"
    assert re.search(r"^set +0 of 1 +0\.2 MB +Apache-2\.0 +nobody", printed("list"), re.M)
    got = printed("get", "set/texts.txt")
    assert got == (f"set: licence: Apache-2.0; cite: nobody\n  texts.txt  0.2 MB  {texts.path}\n")
    assert re.search(r"^set +1 of 1", printed("list"), re.M)
    assert printed("list", "set") == f"set/texts.txt  0.2 MB  here\n  {texts.address}\n"
    texts.path.write_bytes(b"other")
    assert "not as published: has 5 bytes" in printed("get", "set")
    for arguments, error in (
        (["get", "yelp-shem"], "No such data set: 'yelp-shem' (did you mean 'yelp-shen'?)"),
        (["get", "set/text.txt"], "has no file 'text.txt' (did you mean 'texts.txt'?)"),
        (["get"], "the following arguments are required: NAME"),
    ):
        assert error in fails("data", *arguments)


@pytest.fixture
def listed(data_dir: Path) -> dict[str, dict[str, object]]:
    return json.loads((data_dir / "sources.json").read_text())


def test_the_catalogue_has_the_recorded_facts(listed: dict[str, dict[str, object]]) -> None:
    for name, facts in listed.items():
        data_set = catalogue.DATA_SETS[name]
        recorded = {str(facts["address"]).format(path=f["path"]): f for f in facts["files"]}
        for file in data_set.files.values():
            if file.address is not None:
                f = recorded[file.address]
                blob = None if file.sha256 else f["git_blob"]
                assert (file.size, file.sha256, file.git_blob) == (f["bytes"], f["sha256"], blob)
        assert data_set.cite == facts["cite"]


def test_the_data_of_the_tests_is_what_is_published(data_dir: Path) -> None:
    """But the ratings, whose columns about the workers are left out."""
    problems = {
        str(file): file.problem(data_dir / file.place)
        for data_set in catalogue.DATA_SETS.values()
        for file in data_set.files.values()
        if (data_dir / file.place).is_file()
    }
    assert len(problems) > 25
    assert [name for name, problem in problems.items() if problem] == ["li2018/ratings-yelp.csv"]
