"""How much of some work a bar shows as finished, and where no bar is shown."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from fakes import OneLetter

from ctrlreward import Samples, progress
from ctrlreward.progress import track
from ctrlreward.scorers.parts import score_parts


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
    with track("scoring", 12, done=2) as advance:
        with track("reading", 3, "tokens") as tokens:  # inside other work: not shown
            tokens(1)
        advance(10)


def test_the_outermost_work_has_a_bar(bars: list[Bar]) -> None:
    work()
    with pytest.raises(KeyboardInterrupt), track("second", 10):
        raise KeyboardInterrupt  # work that fails leaves its place to the next
    work()
    assert [(bar.title, bar.numbers) for bar in bars] == [
        ("scoring", [2, 12]),
        ("second", [0]),
        ("scoring", [2, 12]),
    ]


def test_texts_of_a_file_are_counted(bars: list[Bar]) -> None:
    score_parts({"letters": OneLetter()["letters"]}, Samples(["soup", "tea", "soup"]))
    assert [bar.numbers[-1] for bar in bars] == [2]  # distinct ones


def test_threads_and_files_have_no_bar(
    bars: list[Bar], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    monkeypatch.setenv("CI", "1")
    work()
    monkeypatch.delenv("CI")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    work()
    assert bars == []
    assert capsys.readouterr().err == ""
