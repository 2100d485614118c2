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
from tiny_models import save_judges
from torch.nn.modules.module import register_module_forward_hook

from ctrlreward import Alignment, CTRLEval, Samples, Scorer, ScoreSpec, progress
from ctrlreward.models import batching, seq2seq
from ctrlreward.models.batching import in_windows, run_distinct
from ctrlreward.progress import track
from ctrlreward.scorers.base import score


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


def numbers(line: str) -> list[str]:
    return re.findall(r"[\d,.]*\d", line)


def test_a_log_says_how_long_work_takes_after_its_first_part_and_then_every_ten_seconds(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with track("CTRLEval", 1500, done=300) as work:
        wait(100)  # until the models are loaded
        with work.part(100), track("a model", 4) as tasks:
            wait(4)
            tasks.advance(1)
            assert lines() == []
            wait(4)
            tasks.advance(1)  # 50 texts in 8 s: the other 1150 take 184 s
            assert numbers(*lines()) == ["1,500", "3", "4"]
            wait(4)
            tasks.advance(2)
            assert lines() == []
        wait(12)  # 200 texts in 24 s: 1000 more take 120 s
        work.advance(100)
        assert numbers(*lines()) == ["500", "1,500", "2", "0"]
        wait(9.5)
        work.advance(900)
        assert lines() == []


def test_a_slow_first_text_does_not_count_for_the_time_left(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with track("CTRLEval", 101) as work:
        for seconds, texts in ((9, 0.5), (9, 0.5), (3, 1), (3, 1)):
            wait(seconds)
            work.advance(texts)
    assert numbers(*lines()) == ["101", "4", "54"]  # 98 texts of 3 s


def test_work_of_less_than_a_minute_leaves_no_line_in_a_log(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with track("CTRLEval", 10) as work:
        for _ in range(10):
            wait(5.9)
            work.advance(1)
    assert lines() == []


def test_texts_are_counted_across_scorers_and_batches(
    wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two scorers of six texts, one of which reads its own rows in batches of one."""
    shown: list[float] = []
    monkeypatch.setattr(progress.Progress, "show", lambda work, done: shown.append(done))

    class Rows(Scorer):
        @property
        def specs(self) -> dict[str, ScoreSpec]:
            return {"rows": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}

        def score_samples(self, samples: Samples) -> dict[str, list[float]]:
            run_distinct([(i,) for i in range(12)], 1, lambda rows: rows)
            return {"rows": [0.0] * len(samples)}

    texts = Samples([*"abcdef"])
    score({"a": Rows()["rows"], "b": Rows()["rows"]}, texts)
    assert shown == sorted(shown)
    assert len(set(shown)) == 25  # 0, and each of 12 rows of both
    assert shown[-1] == pytest.approx(6)


def test_work_in_windows_is_counted_once(
    wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[float] = []
    monkeypatch.setattr(progress.Progress, "show", lambda work, done: shown.append(done))
    monkeypatch.setattr(batching, "_WINDOW_CHARACTERS", 2)
    with track("scoring", 6) as work, work.part(6):
        items = [(i,) for i in range(4)]
        in_windows(items, [1] * 4, lambda rows: run_distinct(rows, 1, lambda batch: batch))
    assert [*dict.fromkeys(shown)] == [0, 1.5, 3, 4.5, 6]
    with track("scoring", 6):
        run_distinct(items, 1, lambda batch: batch)  # no part of the work
    assert shown[-1] == 0


def test_texts_of_an_encoder_decoder_are_counted_across_calls_of_its_output_layer(
    pegasus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = CTRLEval(pegasus, aspects="attribute_relevance", batch_tokens=8)
    scorer.load()
    shown: list[float] = []
    monkeypatch.setattr(seq2seq, "_STATES_PER_CALL", 8)
    monkeypatch.setattr(progress.Progress, "show", lambda work, done: shown.append(done))
    scorer.score([f"{word} soup" for word in ("cold", "warm", "good")], labels="positive")
    assert shown == sorted(shown)
    assert len(set(shown)) > 4


@pytest.mark.parametrize("method", ["embedding", "discriminative", "regression"])
def test_pairs_count_when_they_are_read(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share that is shown grows with the forward passes, within a window too."""
    folders = save_judges(tmp_path, ("soup",))
    names = {"discriminative": "aligner", "regression": "regression"}
    model = {"model": folders[names[method]], "method": method} if method in names else {}
    scorer = Alignment(aspects="groundedness", batch_tokens=16, **model)
    scorer.load()
    shown, at_pass = [0.0], []
    monkeypatch.setattr(progress.Progress, "show", lambda work, done: shown.append(done))
    texts, contexts = ([f"{start} soup {i:02}" for i in range(40)] for start in ("a", "the hot"))
    with register_module_forward_hook(lambda *_: at_pass.append(shown[-1])):
        scorer.score(texts, contexts=contexts)
    assert at_pass == sorted(at_pass)
    assert at_pass[len(at_pass) // 2] == pytest.approx(20, abs=4)


def test_other_threads_show_nothing(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    def score() -> None:
        with track("CTRLEval", 1000) as work:
            wait(20)
            work.advance(5)

    thread = threading.Thread(target=score)
    thread.start()
    thread.join()
    assert lines() == []


def test_work_that_fails_leaves_its_place_to_the_next(
    wait: Callable[[float], None], lines: Callable[[], list[str]]
) -> None:
    with pytest.raises(KeyboardInterrupt), track("first", 10) as work, work.part(5):
        raise KeyboardInterrupt
    with track("second", 1000) as work:
        wait(6)
        work.advance(5)
    assert [line.split()[0] for line in lines()] == ["second"]


SCRIPT = """
import logging, time
from ctrlreward import progress
from ctrlreward.progress import track
from ctrlreward.scorers.base import score

progress._HIDDEN = 0.0
logging.basicConfig(format="%(message)s")
with track("CTRLEval", 100) as work:
    work.advance(25)
    logging.warning("a log message")
    time.sleep(1)
    work.advance(50)
logging.warning("the end")
"""


def test_a_terminal_shows_a_bar_that_is_gone_at_the_end() -> None:
    screen, whole = in_terminal([sys.executable, "-c", SCRIPT])
    assert "CTRLEval" in whole
    assert "75 of 100 texts" in whole
    assert screen == ["a log message", "the end"]
