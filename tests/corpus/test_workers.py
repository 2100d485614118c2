"""Workers: every shard once, whatever dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shard_scorers import Length, Raises, Threads
from warm_python import run_warm

from ctrlreward import Samples
from ctrlreward.corpus.workers import ProcessWorkers, ScoreShards, Shard, in_process
from ctrlreward.scorers.base import Component, Scorer, Scores


def components(scorer: Scorer) -> dict[str, Component]:
    return {name: scorer[name] for name in scorer.specs}


def shards(texts: list[str], rows: int = 2) -> Iterator[Shard]:
    for number, first in enumerate(range(0, len(texts), rows)):
        part = texts[first : first + rows]
        places = [f"in.jsonl:{first + i + 1}" for i in range(len(part))]
        yield Shard(number, Samples(part), places)


def collect(score: ScoreShards, scorer: Scorer, given: Iterator[Shard]) -> dict[int, list[Scores]]:
    found: dict[int, list[Scores]] = {}
    for number, scores in score(components(scorer), given):
        assert number not in found
        found[number] = list(scores.values())
    return found


TEXTS = [f"text {i}" + "e" * (i % 5) for i in range(20)]


def same(found: dict[int, list[Scores]], expected: dict[int, list[Scores]]) -> None:
    assert found.keys() == expected.keys()
    for number, scores in expected.items():
        np.testing.assert_array_equal(found[number], scores)


@pytest.fixture
def two() -> Iterator[ScoreShards]:
    with ProcessWorkers(2, threads=1) as score:
        yield score


def test_processes_score_every_shard_once_and_live_on(two: ScoreShards, tmp_path: Path) -> None:
    with in_process() as here:
        expected = collect(here, Length(), shards(TEXTS))
    same(collect(two, Length(str(tmp_path), seconds=0.05), shards(TEXTS)), expected)
    calls = list(tmp_path.iterdir())
    pids = {call.name.partition("-")[0] for call in calls}
    assert (len(calls), len(pids)) == (10, 2)
    assert str(os.getpid()) not in pids
    assert collect(two, Threads(), shards(TEXTS[:2]))[0][0].tolist() == [1.0, 1.0]


def test_a_worker_that_dies_is_replaced(
    two: ScoreShards, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [*TEXTS[:7], "kill", *TEXTS[8:]]
    with in_process() as here:
        expected = collect(here, Length(), shards(texts))
    for i in range(2):
        (tmp_path / f"kill{i}").touch()
    same(collect(two, Length(str(tmp_path)), shards(texts)), expected)
    assert capsys.readouterr().err.count("(SIGKILL): in.jsonl:7 to in.jsonl:8 are scored") == 2
    for i in range(3):
        (tmp_path / f"kill{i}").touch()
    with pytest.raises(RuntimeError, match=r"3 workers died while they scored in\.jsonl:7 to"):
        collect(two, Length(str(tmp_path)), shards(texts))


def test_an_error_that_can_not_be_read_in_another_process(two: ScoreShards) -> None:
    with pytest.raises(RuntimeError, match="TwoParts: soup: cold"):
        collect(two, Raises(), shards(TEXTS))


def test_shards_are_taken_as_they_are_needed(two: ScoreShards) -> None:
    taken = 0

    def counted() -> Iterator[Shard]:
        nonlocal taken
        for shard in shards(TEXTS):
            taken += 1
            yield shard

    done = 0
    for _ in two(components(Length(seconds=0.01)), counted()):
        done += 1
        assert taken <= done + 3  # two that are scored, and one that waits
    assert done == 10


def test_a_scorer_that_cannot_travel_is_named(two: ScoreShards) -> None:
    scorer = Length()
    scorer.specs_of = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"Length can't be sent to other processes .* --workers 1"):
        collect(two, scorer, shards(TEXTS))


PARENT = """
import os, sys, threading, time
from pathlib import Path
from corpus.test_workers import *

def die(folder: str) -> None:
    while not list(Path(folder).glob("*-*")):  # until the child scores
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":  # which a child imports by another name
    threading.Thread(target=die, args=sys.argv[1:], daemon=True).start()
    with ProcessWorkers(1, 1) as score:
        list(score(components(Length(sys.argv[1], 600)), shards(TEXTS)))
"""


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    script, calls = tmp_path / "parent.py", tmp_path / "calls"
    script.write_text(PARENT)
    calls.mkdir()
    ended = run_warm(script, calls, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    (call,) = calls.iterdir()
    child = call.name.partition("-")[0]
    for _ in range(600):
        if not Path(f"/proc/{child}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
