from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scorer, Scores, ScoreSpec, score


class Lengths(Scorer):
    """Lengths of texts and labels, and the number of samples."""

    def __init__(self, pointwise: bool = True) -> None:
        self.pointwise = pointwise
        self.calls: list[Samples] = []

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            "text": ScoreSpec(higher_is_better=True, range=(0.0, np.inf)),
            "label": ScoreSpec(higher_is_better=False, range=(0.0, np.inf)),
            "samples": ScoreSpec(higher_is_better=True, range=(0.0, np.inf)),
        }

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.calls.append(samples)
        return {
            "text": np.array([len(text) for text in samples.texts], dtype=np.float64),
            "label": np.array([len(label) for label in samples.labels or ()], dtype=np.float32),
            "samples": np.full(len(samples), float(len(samples))),
        }


def test_a_component_is_a_score_with_its_spec() -> None:
    scorer = Lengths()
    assert scorer["label"] == Component(scorer, "label")
    assert not scorer["label"].spec.higher_is_better


def test_an_unknown_score_raises() -> None:
    with pytest.raises(KeyError, match="Lengths has no score 'sad'; it has text, label, samples"):
        Lengths()["sad"]


def test_a_scorer_without_a_model_moves_and_releases_nothing() -> None:
    scorer = Lengths()
    scorer.to("cuda")
    scorer.release()
    assert scorer.calls == []


ROWS = st.lists(st.tuples(st.sampled_from(["", "a", "bcd"]), st.sampled_from(["x", "yz"])))


@given(ROWS, st.booleans())
def test_scores_come_in_the_given_order_and_repeated_samples_are_scored_once(
    rows: list[tuple[str, str]], pointwise: bool
) -> None:
    samples = Samples([text for text, _ in rows], labels=[label for _, label in rows])
    scorer = Lengths(pointwise)
    result = score({"long": scorer["text"], "mark": scorer["label"]}, samples)
    assert list(result) == ["long", "mark"]
    assert result["long"].tolist() == [len(text) for text, _ in rows]
    assert result["mark"].tolist() == [len(label) for _, label in rows]
    assert {values.dtype for values in result.values()} == {np.dtype(np.float64)}
    (given_rows,) = scorer.calls
    assert len(given_rows) == (len({*rows}) if pointwise else len(rows))


def test_each_scorer_is_called_once_for_all_its_scores() -> None:
    first, second = Lengths(), Lengths(pointwise=False)
    samples = Samples(["a", "a"], labels=["x", "x"])
    result = score({"one": first["samples"], "two": second["samples"], "3": first["text"]}, samples)
    assert result["one"].tolist() == [1.0, 1.0]
    assert result["two"].tolist() == [2.0, 2.0]
    assert len(first.calls) == len(second.calls) == 1


def test_another_number_of_values_raises() -> None:
    message = (
        r"Lengths returned 'label' of shape \(0,\) for 2 samples: return an array of shape \(2,\)"
    )
    with pytest.raises(ValueError, match=message):
        score({"label": Lengths()["label"]}, Samples(["a", "b"]))
