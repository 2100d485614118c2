from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctrlreward import Samples, Scorer, ScoreSpec
from ctrlreward.scorers import parts
from ctrlreward.scorers.parts import samples_log, score_parts


class Rounded(Scorer):
    """Length of a text, with an error that differs from call to call; some texts fail."""

    def __init__(self, most: int = 10**6) -> None:
        self.calls: list[list[str]] = []
        self.most = most

    @property
    def specs(self) -> dict[str, ScoreSpec]:
        return {"length": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, list[float]]:
        self.calls.append(list(samples.texts))
        if len(self.calls) > self.most:
            raise KeyboardInterrupt
        error = len(self.calls) * 1e-8
        return {"length": [len(t) + error if t != "fails" else np.nan for t in samples.texts]}


TEXTS = Samples(["one", "three", "one", "fails", "three", "two", "fails", "one"])


@pytest.fixture(autouse=True)
def one_text_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST", 1)


def test_equal_samples_have_equal_scores_whatever_their_parts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scorer = Rounded()
    found = score_parts({"length": scorer["length"]}, TEXTS)["length"]
    np.testing.assert_allclose(found, [3, 5, 3, np.nan, 5, 3, np.nan, 3], atol=1e-6)
    assert found[0] == found[2] == found[7] != found[5]
    assert found[1] == found[4]
    assert scorer.calls == [["one"], ["three"], ["fails"], ["two"]]
    assert "2 of 8" in caplog.text  # both rows of the text that failed


def test_a_killed_call_goes_on_where_it_stopped(tmp_path: Path) -> None:
    killed, again = Rounded(most=2), Rounded()
    components = {"length": killed["length"]}
    log = samples_log(tmp_path / "log", components, TEXTS)
    with pytest.raises(KeyboardInterrupt):
        score_parts(components, TEXTS, log)
    components = {"length": again["length"]}
    log = samples_log(tmp_path / "log", components, TEXTS)
    found = score_parts(components, TEXTS, log)["length"]
    assert again.calls == [["fails"], ["two"]]
    np.testing.assert_allclose(found, [3, 5, 3, np.nan, 5, 3, np.nan, 3], atol=1e-6)


def test_no_samples() -> None:
    assert score_parts({"length": Rounded()["length"]}, Samples([]))["length"].shape == (0,)
