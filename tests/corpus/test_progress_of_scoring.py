"""Progress of scoring in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ctrlreward import Samples, progress
from ctrlreward.corpus.corpus_scoring import score_in_memory
from ctrlreward.corpus.workers import Shard, in_process
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

NAN = float("nan")


class Length(Scorer):
    """Length of a text; records the rows of each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"length": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.calls.append(len(samples))
        return {"length": np.array([len(text) or NAN for text in samples.texts])}


def test_progress_shows_the_texts_of_each_scorer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.0)
    scorers = [Length(), Length()]
    shard = Shard(0, Samples(["a", "bb", "", "dddd", "eeeee"]), [str(i) for i in range(5)])
    both = {"length": scorers[0]["length"], "second": scorers[1]["length"]}
    with in_process() as score_shards:
        for values in score_in_memory(both, shard, score_shards).values():
            np.testing.assert_array_equal(values, [1, 2, NAN, 4, 5])
    assert [scorer.calls for scorer in scorers] == [[5], [5]]
    printed = capsys.readouterr()
    said = [line.split(" ", 1)[1] for line in printed.err.splitlines()]
    expected = [f"Length ({k} of 2): {n} of 5" for k in (1, 2) for n in (0, 5)]
    assert [line.partition(" texts")[0] for line in said] == expected
    assert said[0].endswith("5 texts, time left unknown")
    assert printed.out == ""
