"""Data sets by name, from a server on this machine."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ctrlreward.recipes import rated_rows
from ctrlreward.recipes.data_sets import DATA_SETS, local_file, main

REFERENCES = ("reference.0", "reference.1")
CONTENT = b"the soup was cold .\n" * 5000


def hashes(content: bytes) -> dict[str, str]:
    blob = b"blob %d\0" % len(content) + content
    return {
        "sha256": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "git": f"git:{hashlib.sha1(blob).hexdigest()}",
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder; the data set `set` is served by this machine, without `absent`."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "texts").write_bytes(CONTENT)
    own = hashes(CONTENT)
    files = {name: {"hash": each, "path": "texts"} for name, each in own.items()}
    files |= {"changed": {"hash": f"sha256:{'0' * 64}", "path": "texts"}}
    files |= {"changed_blob": {"hash": f"git:{'0' * 40}", "path": "texts"}}
    files |= {"absent": {"hash": own["sha256"], "path": "absent"}}
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "site")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    monkeypatch.setenv("CTRLREWARD_DATA", str(tmp_path / "data"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setitem(DATA_SETS, "set", {"address": address, "files": files})
        yield tmp_path / "data"
        server.shutdown()


@pytest.mark.parametrize("name", ["sha256", "git"])
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


def test_what_can_not_be_downloaded_is_said_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["set/absent"])
    assert stopped.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert str(folder / "set" / "absent") in line


def test_other_names_are_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("texts.txt", "nowhere/texts", "./set/texts", "set"):
        assert local_file(path) == Path(path)
    assert local_file("~/texts.txt") == Path.home() / "texts.txt"
    for name in ("text", "../texts", "/texts"):
        with pytest.raises(ValueError, match="has no file"):
            local_file(f"set/{name}")
    monkeypatch.chdir(folder.parent)
    Path("set").mkdir()
    Path("set/own").touch()
    assert local_file("set/own") == Path("set/own")


def test_the_catalogue_has_the_recorded_facts(data_dir: Path) -> None:
    """The addresses and hashes; the tests' data is published, but for columns about workers."""
    recorded = json.loads((data_dir / "sources.json").read_text(encoding="utf-8"))
    checked, differing = 0, []
    for name, data_set in DATA_SETS.items():
        facts = recorded.get(name, {"files": []})
        of_address = {str(facts["address"]).format(path=f["path"]): f for f in facts["files"]}
        for file, entry in data_set["files"].items():
            kind, _, digest = entry["hash"].partition(":")
            address = data_set["address"] + (entry.get("path") or data_set.get("path", "") + file)
            if of_address and file != rated_rows.FILE:
                assert digest == of_address[address]["sha256" if kind == "sha256" else "git_blob"]
            path = data_dir / data_set.get("folder", name) / file
            if path.is_file():
                checked += 1
                if hashes(path.read_bytes())[kind] != entry["hash"]:
                    differing.append(file)
    assert checked > 20
    assert differing == ["ratings-yelp.csv"]


def test_rated_rows_are_made_of_the_published_parts(
    data_dir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ratings and references, and the outputs of each system as far as the rows name it."""
    published, own = data_dir / "li2018", folder / "li2018"
    expected = (published / rated_rows.FILE).read_bytes()
    outputs = defaultdict(set)
    for row in csv.DictReader(expected.decode().splitlines()):
        for system in row["system"].split("|"):
            outputs[system, row["target"]].add((row["source"], row["output"]))
    parts = {n: (published / n).read_bytes() for n in ("ratings-yelp.csv", *REFERENCES)}
    for system in rated_rows.SYSTEMS:
        for number, target in enumerate(("positive", "negative")):
            rows = sorted(outputs[system, target])
            text = "".join(f"{source}\t{output}\t0\n" for source, output in rows)
            parts[f"evaluation/outputs/yelp/sentiment.test.{number}.{system}"] = text.encode()
    for name, content in parts.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(content)
    made = local_file(f"li2018/{rated_rows.FILE}")
    assert made == own / rated_rows.FILE
    assert made.read_bytes() == expected
    made.unlink()
    (own / "reference.0").write_bytes(b"")
    with pytest.raises(ValueError, match="sha256"):
        local_file(f"li2018/{rated_rows.FILE}")
    assert not made.exists()
