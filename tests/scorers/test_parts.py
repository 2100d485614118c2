from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ctrlreward import Samples, Scorer, ScoreSpec
from ctrlreward.scorers import parts
from ctrlreward.scorers.parts import samples_log, score_parts


class Rounded(Scorer):
    """Length of a text, with an error that differs from call to call; some texts fail."""

    specs: ClassVar = {"length": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def score_samples(self, samples: Samples) -> dict[str, list[float]]:
        self.calls.append(list(samples.texts))
        error = len(self.calls) * 1e-8
        return {"length": [len(t) + error if t != "fails" else np.nan for t in samples.texts]}


TEXTS = Samples(["one", "three", "one", "fails", "three", "two", "fails", "one"])


def test_equal_samples_have_equal_scores_whatever_their_parts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST", 1)
    scorer = Rounded()
    found = score_parts({"length": scorer["length"]}, TEXTS)["length"]
    np.testing.assert_allclose(found, [3, 5, 3, np.nan, 5, 3, np.nan, 3], atol=1e-6)
    assert found[0] == found[2] == found[7] != found[5]
    assert found[1] == found[4]
    assert scorer.calls == [["one"], ["three"], ["fails"], ["two"]]
    assert "2 of 8" in caplog.text  # both rows of the text that failed


class Stopping(Rounded):
    """Scores two texts, and then does what the test says."""

    def __init__(self, then: Any) -> None:
        super().__init__()
        self.then = then

    def score_samples(self, samples: Samples) -> dict[str, list[float]]:
        if len(self.calls) == 2:
            self.then()
        return super().score_samples(samples)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_log_that_lacks_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first part may have been removed with the file of another process."""
    monkeypatch.setattr(parts, "MOST", 1)
    component = Stopping(interrupt)["length"]
    log = samples_log(tmp_path / "log.jsonl", {"length": component}, TEXTS)
    with pytest.raises(KeyboardInterrupt):
        score_parts({"length": component}, TEXTS, log)
    header, _, second = log.path.read_text().splitlines(keepends=True)
    log.path.write_text(header + second)
    with pytest.raises(ValueError, match=r"log\.jsonl"):
        score_parts({"length": Rounded()["length"]}, TEXTS, log)


def test_a_log_has_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST", 1)
    log = samples_log(tmp_path / "log.jsonl", {}, TEXTS)
    component = Stopping(lambda: score_parts({"length": component}, TEXTS, log))["length"]
    with pytest.raises(ValueError, match=r"log\.jsonl is in use"):
        score_parts({"length": component}, TEXTS, log)
    assert [each.name for each in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_resumed_run_tells_all_failures_and_loads_nothing_if_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "MOST", 1)
    component = Rounded()["length"]
    log = samples_log(tmp_path / "log.jsonl", {"length": component}, TEXTS)
    scores = score_parts({"length": component}, TEXTS, log)["length"]
    told = caplog.messages[:]
    monkeypatch.setattr(Rounded, "load", interrupt)
    again = score_parts({"length": Rounded()["length"]}, TEXTS, log)["length"]
    np.testing.assert_array_equal(again, scores)
    assert caplog.messages == told * 2
    assert "2 of 8" in told[0]
