from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ctrlreward import Samples, displays
from ctrlreward.commands.chunked_scoring import ScoreLog, score_in_chunks
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

NAN = float("nan")
IDENTITY = {"input": "ä", "columns": {"text": "text"}}


class Length(Scorer):
    """Length of a text; records the rows of each call, and can fail at a text."""

    def __init__(self, fail_at: str | None = None) -> None:
        self.fail_at = fail_at
        self.calls: list[int] = []

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"length": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def score(self, samples: Samples) -> dict[str, Scores]:
        if self.fail_at in samples.texts:
            raise RuntimeError("out of memory")
        self.calls.append(len(samples))
        return {"length": np.array([len(text) or NAN for text in samples.texts])}


def test_scores_survive_a_restart(tmp_path: Path) -> None:
    scores = {"a": np.array([0.1, NAN]), "b": np.array([1e-300, -0.0])}
    log = ScoreLog(tmp_path / "log.jsonl", IDENTITY)
    log.append(scores)
    log.append(scores)
    resumed = ScoreLog(tmp_path / "log.jsonl", IDENTITY)
    assert resumed.column("c").tolist() == []
    for name, values in scores.items():
        assert np.array_equal(resumed.column(name), np.tile(values, 2), equal_nan=True)


def test_chunks_before_a_failure_are_on_disk(tmp_path: Path) -> None:
    samples = Samples(["a", "bb", "", "dddd", "eeeee"])
    failing, working = Length(fail_at="eeeee"), Length()
    log = ScoreLog(tmp_path / "log.jsonl", IDENTITY)
    with pytest.raises(RuntimeError, match="out of memory"):
        score_in_chunks({"length": failing["length"]}, samples, 2, log)
    assert failing.calls == [2, 2]
    log = ScoreLog(tmp_path / "log.jsonl", IDENTITY)
    scores = score_in_chunks({"length": working["length"]}, samples, 2, log)
    assert working.calls == [1]
    np.testing.assert_array_equal(scores["length"], [1, 2, NAN, 4, 5])


def test_a_log_that_is_cut_at_a_line_or_within_resumes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    samples = Samples(["a", "bb", "", "dddd", "eeeee"])
    components = {"first": Length()["length"], "second": Length()["length"]}
    expected = score_in_chunks(components, samples, 2, ScoreLog(path, IDENTITY))
    content = path.read_bytes()
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    for size in sorted({0, *(end + step for end in ends[:-1] for step in (-5, 0, 1, 2))}):
        path.write_bytes(content[:size])
        scores = score_in_chunks(components, samples, 2, ScoreLog(path, IDENTITY))
        for name, values in expected.items():
            np.testing.assert_array_equal(scores[name], values)
        assert path.read_bytes() == content


def test_a_log_of_other_settings_is_refused(tmp_path: Path) -> None:
    ScoreLog(tmp_path / "log.jsonl", IDENTITY).append({"length": np.zeros(3)})
    with pytest.raises(ValueError, match=r"log\.jsonl was started with a different input: .*\"b\""):
        ScoreLog(tmp_path / "log.jsonl", IDENTITY | {"input": "b"})


def test_a_log_with_more_rows_than_samples_is_refused(tmp_path: Path) -> None:
    log = ScoreLog(tmp_path / "log.jsonl", IDENTITY)
    log.append({"length": np.zeros(3)})
    with pytest.raises(ValueError, match=r"has 3 rows, but there are 2 samples: delete it"):
        score_in_chunks({"length": Length()["length"]}, Samples(["a", "b"]), 4, log)


def test_the_log_of_a_run_shows_the_texts_of_each_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(displays, "SECONDS_PER_LINE", 0.0)
    samples = Samples(["a", "bb", "", "dddd", "eeeee"])
    log = ScoreLog(tmp_path / "log.jsonl", IDENTITY)
    with pytest.raises(RuntimeError, match="out of memory"):
        score_in_chunks({"length": Length(fail_at="eeeee")["length"]}, samples, 2, log)
    capsys.readouterr()
    both = {"length": Length()["length"], "second": Length()["length"]}
    score_in_chunks(both, samples, 2, ScoreLog(tmp_path / "log.jsonl", IDENTITY))
    printed = capsys.readouterr()
    said = [line.split(" ", 1)[1] for line in printed.err.splitlines()]
    assert [line.partition(" texts")[0] for line in said] == [
        "Length (1 of 2): 4 of 5",  # goes on where the log ends
        "Length (1 of 2): 5 of 5",
        "Length (1 of 2): 5 of 5",
        "Length (2 of 2): 0 of 5",
        "Length (2 of 2): 2 of 5",
        "Length (2 of 2): 4 of 5",
        "Length (2 of 2): 5 of 5",
        "Length (2 of 2): 5 of 5",
    ]
    assert said[0].endswith("5 texts, time left unknown")
    assert printed.out == ""
