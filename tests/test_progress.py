"""Progress of work in a log, on a terminal and elsewhere."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from terminals import in_terminal

from ctrlreward import progress
from ctrlreward.engine.batching import run_batched, windows
from ctrlreward.progress import Phase, show, track


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Function that lets seconds pass, for displays only."""
    clock = SimpleNamespace(now=1000.0)

    def pass_seconds(seconds: float) -> None:
        clock.now += seconds

    stand_in = SimpleNamespace(monotonic=lambda: clock.now, strftime=lambda form: "12:00:00")
    monkeypatch.setattr(progress, "time", stand_in)
    return pass_seconds


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Function that returns the lines written since the last call, without the time of day."""

    def read() -> list[str]:
        printed = capsys.readouterr()
        assert printed.out == ""
        assert re.fullmatch(r"(\d\d:\d\d:\d\d [^\r\x1b\n]+\n)*", printed.err)
        return [line.split(" ", 1)[1] for line in printed.err.splitlines()]

    return read


# In a log


def test_a_log_has_a_line_every_ten_seconds(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with track("CTRLEval", 1500, done=300) as advance:
        assert lines() == ["CTRLEval: 300 of 1,500 texts, time left unknown"]
        wait(9.5)
        advance(95)
        assert lines() == []
        wait(10.5)  # 200 texts in 20 s: 1000 more take 100 s
        advance(105)
        assert lines() == ["CTRLEval: 500 of 1,500 texts, 10 texts/s, 1 min 40 s left"]
        wait(5)
        advance(500)
        assert lines() == []
        wait(5)
        advance(500)
        assert lines() == ["CTRLEval: 1,500 of 1,500 texts in 30 s"]
    assert lines() == []  # not again


def test_the_last_line_tells_where_work_was_interrupted(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    def count() -> None:
        with track("counting", 2.5, "MB") as advance:
            wait(20)
            advance(1.0)
            wait(5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count()
    assert lines() == [
        "counting: 0.0 of 2.5 MB, time left unknown",
        "counting: 1.0 of 2.5 MB, 0.05 MB/s, 30 s left",
        "counting: 1.0 of 2.5 MB, 0.04 MB/s, 38 s left",
    ]


def test_a_line_names_the_parts(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with track("CTRLEval", 100):
        for _ in windows([4] * 50):
            wait(40)
            run_batched([1] * 20, 1, lambda batch: wait(1) or batch, "tiny: 20 texts")
    whole = "CTRLEval: 0 of 100 texts, time left unknown"
    scoring = f"{whole} | scoring: 0 of 50 texts, time left unknown"
    assert lines() == [
        whole,
        f"{scoring} | tiny: 20 texts: 0 of 20 rows, time left unknown",
        f"{scoring} | tiny: 20 texts: 10 of 20 rows, 1 rows/s, 10 s left",
        scoring,  # the rows are finished
        whole,
    ]


def test_other_threads_show_nothing(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    def score() -> None:
        with track("CTRLEval", 10) as advance:
            wait(20)
            advance(5)

    with show(Phase("training")):
        thread = threading.Thread(target=score)
        thread.start()
        thread.join()
    assert lines() == ["training"]


def test_a_generator_that_is_dropped_within_work_ends_its_part(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with track("CTRLEval", 100) as advance:
        unfinished = windows([4] * 50)
        next(unfinished)
        del unfinished
        wait(20)
        advance(50)
    assert lines()[1] == "CTRLEval: 50 of 100 texts, 2.5 texts/s, 20 s left"


# On a terminal

SCRIPT = """
import logging, sys, threading
from rich.live import Live
from ctrlreward.progress import Phase, show, track

drawn, refresh = threading.Event(), Live.refresh
Live.refresh = lambda live: (refresh(live), drawn.set())

def redraw():
    for _ in range(2):  # the first one may have begun before
        drawn.clear()
        assert drawn.wait(120)

logging.basicConfig(format="%(message)s")
with track("CTRLEval [b]", 100) as advance:
    advance(25)
    with show(Phase("generating 128 texts")):
        redraw()
    logging.warning("a log message")
    print("printed", flush=True)
    advance(75)
    redraw()
logging.warning("the end")
"""


def test_a_terminal_shows_a_bar_that_is_gone_at_the_end() -> None:
    screen, whole = in_terminal([sys.executable, "-c", SCRIPT])
    assert "CTRLEval [b]" in whole
    assert "25 of 100 texts" in whole
    assert "generating 128 texts" in whole
    assert "100 of 100 texts in" in whole
    assert screen == ["a log message", "printed", "the end"]


def test_data_on_standard_output_is_apart_from_the_bars(tmp_path: Path) -> None:
    script, data = tmp_path / "script.py", tmp_path / "data.txt"
    script.write_text(SCRIPT)
    screen, whole = in_terminal(["bash", "-c", f"{sys.executable} {script} > {data}"])
    assert data.read_text() == "printed\n"
    assert screen == ["a log message", "the end"]
    assert "CTRLEval [b]" in whole
