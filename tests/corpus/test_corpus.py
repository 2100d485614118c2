"""`ctrlreward score` on corpora: workers, folders, URLs, processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import shard_scorers
from corpus.conftest import write_jsonl
from warm_python import WarmProcess

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import RowStream, read_rows

pytestmark = pytest.mark.usefixtures("at_home")
SCORER = ["--scorers", "shard_scorers.Length"]


def write(path: str, first: int, rows: int) -> None:
    texts = [{"id": i, "text": f"text {i} " + "e" * (i % 7)} for i in range(rows)]
    write_jsonl(path, texts[first:])


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_workers_and_chunks_change_no_byte(suffix: str) -> None:
    write("in.jsonl", 0, 100)
    main(["score", "in.jsonl", f"one{suffix}", *SCORER])
    main(["score", "in.jsonl", f"two{suffix}", *SCORER, "--workers=2", "--chunk=7"])
    assert Path(f"one{suffix}").read_bytes() == Path(f"two{suffix}").read_bytes()
    left = {"in.jsonl", f"one{suffix}", f"two{suffix}"}
    assert {path.name for path in Path().iterdir()} == left


def test_a_shard_or_less_is_read_once_and_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("in.jsonl", 0, 20)
    main(["score", "in.jsonl", "shards.jsonl", *SCORER, "--chunk=19"])
    opened: list[str] = []
    whole_file, read = Location.whole_file, Location.open

    def opened_to_write(self: Location) -> Any:
        opened.append(f"write {self.name}")
        return whole_file(self)

    def opened_to_read(self: Location) -> Any:
        opened.append(f"read {self.name}")
        return read(self)

    monkeypatch.setattr(Location, "whole_file", opened_to_write)
    monkeypatch.setattr(Location, "open", opened_to_read)
    main(["score", "in.jsonl", "out.jsonl", *SCORER, "--chunk=20"])
    assert opened == ["read in.jsonl", "write out.jsonl"]
    assert Path("out.jsonl").read_bytes() == Path("shards.jsonl").read_bytes()


def test_a_killed_run_and_a_killed_worker_lose_nothing(tmp_path: Path) -> None:
    write("in.jsonl", 0, 400)
    main(["score", "in.jsonl", "whole.jsonl", *SCORER])
    calls = tmp_path / "calls"
    calls.mkdir()
    command = ["score", "in.jsonl", "out.jsonl", *SCORER, f"--scorers.folder={calls}"]
    command += ["--scorers.seconds=0.02", "--chunk=4", "--workers=2"]
    draw = random.Random(0)

    def wait() -> None:
        until = len(list(calls.iterdir())) + draw.randrange(5, 20)
        while len(list(calls.iterdir())) < until:
            time.sleep(0.005)

    process = WarmProcess(["-m", "ctrlreward", *command], tmp_path / "out", tmp_path / "err")
    wait()
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not Path("out.jsonl").exists()

    def kill_a_worker() -> None:
        wait()
        newest = max(calls.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        os.kill(int(newest.name.partition("-")[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    main(command)
    killer.join()
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert len(list(calls.iterdir())) <= 100 + 2 + 1  # what was in work at a kill, again


@pytest.mark.parametrize("rows", [30, 20, 10])
@pytest.mark.parametrize("scorer", ["Length", "Rank"])
def test_an_input_that_changes_while_it_is_scored_is_noticed(
    rows: int, scorer: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    command = ["in.jsonl", "out.jsonl", "--scorers", f"shard_scorers.{scorer}", "--chunk=4"]
    write("in.jsonl", 0, 20)
    score = getattr(shard_scorers, scorer).score_samples

    def changes_input(self: Any, samples: Samples) -> Any:
        write("new.jsonl", 1, rows + 1)
        Path("new.jsonl").replace("in.jsonl")
        return score(self, samples)

    with monkeypatch.context() as patch:
        patch.setattr(f"shard_scorers.{scorer}.score_samples", changes_input)
        error = refused(*command)
    assert "in.jsonl has changed while it was scored. Repeat the command." in error
    assert not Path("out.jsonl").exists()
    main(["score", *command])
    main(["score", "in.jsonl", "fresh.jsonl", *command[2:]])
    assert Path("out.jsonl").read_bytes() == Path("fresh.jsonl").read_bytes()


def test_an_output_that_is_a_link_is_written_where_it_leads() -> None:
    write("in.jsonl", 0, 20)
    Path("out.jsonl").symlink_to("disk/scored.jsonl")
    main(["score", "in.jsonl", "out.jsonl", *SCORER, "--chunk=4"])
    main(["score", "in.jsonl", "whole.jsonl", *SCORER])
    assert Path("out.jsonl").is_symlink()
    assert Path("disk/scored.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert [path.name for path in Path("disk").iterdir()] == ["scored.jsonl"]
    Path("circle.jsonl").symlink_to("circle.jsonl")  # which leads nowhere
    main(["score", "in.jsonl", "circle.jsonl", *SCORER])
    assert Path("circle.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_folders_of_files() -> None:
    write("all.jsonl", 0, 30)
    for number, (first, end) in enumerate([(0, 11), (11, 12), (12, 30)]):
        write(f"in/part-{number}.jsonl", first, end)
    Path("in/_SUCCESS").touch()
    Path("in/notes.txt").touch()
    main(["score", "all.jsonl", "whole.jsonl", *SCORER, "--chunk=4"])
    main(["score", "in", "out.jsonl", *SCORER, "--chunk=4"])
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    main(["score", "in", "out", *SCORER, "--chunk=4"])
    parts = sorted(Path("out").iterdir())
    assert [part.name for part in parts] == [f"part-{i}.jsonl" for i in range(3)]
    assert b"".join(map(Path.read_bytes, parts)) == Path("whole.jsonl").read_bytes()


def test_a_finished_folder_is_recognised(
    refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        write(f"in/part-{number}.csv.jsonl", number * 5, 5 + number * 5)
    main(["score", "in", "out", *SCORER])
    main(["score", "in", "out", *SCORER])
    assert "out is already complete" in capsys.readouterr().out
    Path("out/part-1.csv.jsonl").unlink()
    assert "No such file or folder: out/part-1.csv.jsonl" in refused("in", "out", *SCORER)


def test_urls() -> None:
    write("in.jsonl", 0, 30)
    main(["score", "in.jsonl", "whole.csv", *SCORER])
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/in.jsonl", Path("in.jsonl").read_bytes())
    main(["score", "memory://corpus/in.jsonl", "memory://scored/out.csv", *SCORER, "--chunk=8"])
    assert memory.cat("/scored/out.csv") == Path("whole.csv").read_bytes()
    assert memory.ls("/scored", detail=False) == ["/scored/out.csv"]
    main(["score", "memory://corpus", "memory://scored/all", *SCORER])
    assert [row["id"] for row in RowStream(Location("memory://scored/all"))] == list(range(30))


def test_files_of_a_folder_have_the_same_columns(refused: Callable[..., str]) -> None:
    Path("in").mkdir()
    Path("in/a.csv").write_text("text,id\na,1\n")
    Path("in/b.csv").write_text("text,nr\na,1\n")
    error = refused("in", "out.csv", *SCORER)
    assert "in/b.csv has the columns text, nr, but in/a.csv has text, id. All files must" in error


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_memory_does_not_grow_with_the_rows(suffix: str) -> None:
    peaks = []
    for rows in (500, 500, 5_000):  # the first one warms up
        write("in.jsonl", 0, rows)
        tracemalloc.start()
        main(["score", "in.jsonl", f"out-{rows}-{len(peaks)}{suffix}", *SCORER, "--chunk=100"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(read_rows(Path(f"out-5000-2{suffix}"))) == 5_000
    # A row of these files has 35 bytes, and many more in memory. A shard of 100 rows is known by
    # its entry in the manifest, its number and a time of progress: up to 20 bytes a row.
    # A row that is kept has more than 80.
    assert peaks[2] < 1.5 * peaks[1] + 20 * 5_000
