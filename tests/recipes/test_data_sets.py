"""Data sets by name, from a server on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ctrlreward.recipes import data_sets
from ctrlreward.recipes.data_sets import DATA_SETS, local_file, main

CONTENT = b"the soup was cold .\n" * 5000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder; the data set `set` is served by this machine, without `absent`."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "texts").write_bytes(CONTENT)
    sha256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    blob = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    hashes = {"texts": sha256, "blob": f"git:{blob}", "absent": sha256}
    hashes |= {"changed": f"sha256:{'0' * 64}", "changed_blob": f"git:{'0' * 40}"}
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "site")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        files = {
            name: {"hash": each, "path": "absent" if name == "absent" else "texts"}
            for name, each in hashes.items()
        }
        address = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setitem(DATA_SETS, "set", {"address": address, "files": files})
        monkeypatch.setenv("CTRLREWARD_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
        yield tmp_path / "data"
        server.shutdown()


@pytest.mark.parametrize("name", ["texts", "blob"])
def test_a_file_is_downloaded_once(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([f"set/{name}"])
    assert capsys.readouterr().out == f"{folder / 'set' / name}\n"
    assert (folder / "set" / name).read_bytes() == CONTENT
    (folder / "set" / name).write_bytes(b"by hand\n")
    assert local_file(f"set/{name}").read_bytes() == b"by hand\n"
    assert [path.name for path in (folder / "set").iterdir()] == [name]


@pytest.mark.parametrize("name", ["absent", "changed", "changed_blob"])
def test_another_file_than_the_published_one_is_not_kept(name: str, folder: Path) -> None:
    with pytest.raises((ValueError, OSError)):
        local_file(f"set/{name}")
    assert not list((folder / "set").glob("*"))


def test_other_names_are_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("texts.txt", "nowhere/texts", "./set/texts", "set"):
        assert local_file(path) == Path(path)
    assert local_file("~/texts.txt") == Path.home() / "texts.txt"
    for name in ("text", "../texts", "/texts"):
        with pytest.raises(ValueError, match="data set 'set' has no file"):
            local_file(f"set/{name}")
    monkeypatch.chdir(folder.parent)
    Path("set").mkdir()
    Path("set/own").touch()
    assert local_file("set/own") == Path("set/own")


def test_what_is_made_is_in_the_cache_and_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = local_file("pplm/topic.txt")
    assert made.is_relative_to(folder.parent / "cache" / "data")
    assert made.read_text().splitlines()[0] == "In summary"
    made.unlink()
    monkeypatch.setitem(DATA_SETS["pplm"]["files"]["topic.txt"], "hash", f"sha256:{'0' * 64}")
    with pytest.raises(ValueError, match=r"pplm/topic.txt, made by this package, has another"):
        local_file("pplm/topic.txt")
    assert not made.exists()


def test_the_catalogue_has_the_recorded_facts(data_dir: Path) -> None:
    listed = json.loads((data_dir / "sources.json").read_text(encoding="utf-8"))
    for name, facts in listed.items():
        data_set = DATA_SETS[name]
        recorded = {str(facts["address"]).format(path=f["path"]): f for f in facts["files"]}
        for file, entry in data_set["files"].items():
            if not entry.get("made"):
                path = entry.get("path", data_set.get("path", "") + file)
                kind, _, digest = entry["hash"].partition(":")
                found = recorded[data_set["address"] + path]
                assert digest == found["sha256" if kind == "sha256" else "git_blob"]
        assert data_set["cite"] == facts["cite"]


def test_the_data_of_the_tests_is_what_is_published(data_dir: Path) -> None:
    """But the ratings, whose columns about the workers are left out."""
    same = {}
    for name, data_set in DATA_SETS.items():
        for file, entry in data_set["files"].items():
            path = data_dir / entry.get("folder", data_set.get("folder", name)) / file
            if path.is_file():
                kind = entry["hash"].partition(":")[0]
                digest = data_sets._hash(path.read_bytes(), kind)
                same[f"{name}/{file}"] = digest == entry["hash"]
    assert len(same) > 25
    assert [name for name, equal in same.items() if not equal] == ["li2018/ratings-yelp.csv"]
