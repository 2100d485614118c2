"""How much of some work a bar shows as finished, and where no bar is shown."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fakes import Length, OneLetter

from ctrlreward import Reward, progress
from ctrlreward.progress import track


class Bar:
    """A bar that keeps what it shows."""

    def __init__(self, desc: str, total: float, initial: float, **style: Any) -> None:
        self.title, self.numbers = desc, [initial]

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, items: float) -> None:
        self.numbers.append(self.numbers[-1] + items)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    """The bars of a test, as on a terminal."""
    shown: list[Bar] = []
    monkeypatch.setattr(progress, "tqdm", lambda **given: shown.append(Bar(**given)) or shown[-1])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("CI", raising=False)
    return shown


def work() -> None:
    with track("scoring", 12, done=2) as texts:
        with texts.part(6), track("reading", 3, "tokens") as tokens:
            tokens.advance(1)
            with tokens.part(2), track("reading", 4) as inner:
                inner.advance(2)
                inner.advance(1)  # the part finishes the rest
        with track("beside", 5) as other:
            other.advance(5)  # no part of the work
        texts.advance(4)


def test_work_within_work_moves_the_bar_of_the_outermost(bars: list[Bar]) -> None:
    work()
    (bar,) = bars
    assert bar.title == "scoring"
    finished = [*dict.fromkeys(round(number, 9) for number in bar.numbers)]
    assert finished == [2, 4, 6, 7, 8, 12]


def test_texts_are_counted_across_scorers(bars: list[Bar]) -> None:
    Reward({"letters": OneLetter(), "length": Length()["length"]})(["soup", "tea", "soup"])
    assert [bar.numbers[-1] for bar in bars] == [pytest.approx(3)]


def test_work_that_fails_leaves_its_place_to_the_next(bars: list[Bar]) -> None:
    with pytest.raises(KeyboardInterrupt), track("first", 10) as first, first.part(5):
        raise KeyboardInterrupt
    work()
    assert [bar.title for bar in bars] == ["first", "scoring"]


def in_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_threads_and_files_have_no_bar(
    bars: list[Bar], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_thread(work)
    monkeypatch.setenv("CI", "1")
    work()
    monkeypatch.delenv("CI")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    work()
    assert bars == []
    assert capsys.readouterr().err == ""
