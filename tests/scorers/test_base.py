from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.failures import Failures, ItemError, rows_named
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import (
    Scored,
    Scorer,
    Scores,
    ScoreSpec,
    score,
)
from ctrlreward.scorers.components import FunctionScorer


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


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "bcd"]), st.sampled_from(["x", "yz"])))


@given(ROWS, st.booleans())
def test_scores_come_in_the_given_order_and_repeated_samples_are_scored_once(
    rows: list[tuple[str, str]], pointwise: bool
) -> None:
    samples = Samples([text for text, _ in rows], labels=[label for _, label in rows])
    scorer = Lengths(pointwise)
    result = score({"long": scorer["text"], "mark": scorer["label"]}, samples).scores
    assert list(result) == ["long", "mark"]
    assert result["long"].tolist() == [len(text) for text, _ in rows]
    assert result["mark"].tolist() == [len(label) for _, label in rows]
    assert {values.dtype for values in result.values()} == {np.dtype(np.float64)}
    assert len(scorer.calls) == bool(rows)
    for given_rows in scorer.calls:
        assert len(given_rows) == (len({*rows}) if pointwise else len(rows))


class Returns(Scorer):
    """A scorer that returns what it was given."""

    specs = {"ease": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}  # noqa: RUF012

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return self.returned  # type: ignore[no-any-return]


CALLS: dict[str, Callable[[Returns, Samples], Scores]] = {
    "scorer.score": lambda scorer, samples: scorer.score(samples)["ease"],
    "component": lambda scorer, samples: scorer["ease"](samples),
    "reward": lambda scorer, samples: Reward({"e": scorer})(samples).components["e"],
}


WRONG: dict[str, Any] = {
    "no mapping": None,
    "a text": {"ease": [0.5, "0.5"]},
    "another name": {"eas": [1, 1]},
    "too few": {"ease": [0.5]},
    "a matrix": {"ease": np.zeros((2, 1))},
    "above its range": {"ease": [0.5, 85.0]},
    "below its range": {"ease": [-0.1, 0.5]},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("what", WRONG)
def test_what_a_scorer_returns_is_checked(call: str, what: str) -> None:
    with pytest.raises((TypeError, ValueError), match="Returns"):
        CALLS[call](Returns(WRONG[what]), Samples(["a", "b"]))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "values",
    [[0.5, None], (0.5, float("nan")), torch.tensor([0.5, torch.nan], dtype=torch.bfloat16),
     np.array([0.5, None], dtype=object), [0.5, np.inf], [np.float32(0.5), -np.inf], [0.5, 1e300]],
)  # fmt: skip
def test_none_and_infinity_are_failed_samples(
    call: str, values: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = CALLS[call](Returns({"ease": values}), Samples(["a", "b"]))
    np.testing.assert_array_equal(found, [0.5, np.nan])
    assert len(caplog.messages) == 1


def test_the_rounding_of_bfloat16_is_in_range_and_the_scorer_keeps_its_array() -> None:
    over = torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16)  # neighbours in bfloat16
    np.testing.assert_array_equal(Returns({"ease": over}).score(["a", "b"])["ease"], [1, 1.0078125])
    own = np.array([0.5, np.inf])
    Returns({"ease": own}).score(["a", "b"])
    assert own[1] == np.inf


@pytest.mark.parametrize("call", CALLS)
def test_an_exception_of_a_scorer_names_it(call: str) -> None:
    """Also where only the message is shown: by another rank, or by a server."""

    class Raises(Returns):
        def score_samples(self, samples: Samples) -> dict[str, Scores]:
            return {"ease": {}["odd"]}

    with pytest.raises(KeyError, match="odd") as raised:
        CALLS[call](Raises(None), Samples(["a", "b", "a"]))
    assert "Raises" in raised.value.__notes__[0]


@pytest.mark.parametrize("call", CALLS)
def test_a_panic_of_a_tokenizer_is_an_ordinary_error(call: str) -> None:
    class PanicException(BaseException):
        pass

    class Panics(Returns):
        def score_samples(self, samples: Samples) -> dict[str, Scores]:
            raise PanicException("byte index 3")

    with pytest.raises(RuntimeError, match=r"Panics .*byte index 3"):
        CALLS[call](Panics(None), Samples(["a"]))


class Picky(Returns):
    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        if "odd" in samples.texts:
            raise ItemError("texts", samples.texts.index("odd"), "is odd")
        return {"ease": np.ones(len(samples))}


class Failing(Returns):
    def score_samples(self, samples: Samples) -> Scored:
        rows = [i for i, text in enumerate(samples.texts) if text == "odd"]
        values = [np.nan if i in rows else 1.0 for i in range(len(samples))]
        return Scored({"ease": values}, Failures(dict.fromkeys(rows, "it is odd")))


def test_rows_after_empty_and_repeated_samples(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["soup", "", "soup", "odd", "tea \ud800", "odd"]  # a scorer gets distinct ones alone
    with pytest.raises(ItemError) as raised:
        Reward({"picky": Picky(None)})(texts)
    assert (raised.value.column, raised.value.row) == ("texts", 3)
    found = score({"ease": Failing(None)["ease"]}, Samples(texts))
    assert found.failures.keys() == {1, 3, 4, 5}
    np.testing.assert_array_equal(found.scores["ease"], [1, np.nan, 1, np.nan, np.nan, np.nan])
    assert caplog.messages == []
    Failing(None).score(texts)
    (message,) = caplog.messages  # one for all
    assert message.startswith("4 of 6 samples")
    with (
        pytest.raises(ValueError, match=r"^line 9: review is odd$"),
        rows_named([f"line {i + 6}" for i in range(6)], {"texts": "review"}),
    ):
        Picky(None).score(texts)


def test_failures_of_one_call_are_not_those_of_the_next() -> None:
    Scored({}).failures.add(0, "it is odd")
    assert Scored({}).failures == {}


def test_reasons_are_of_the_rows_of_the_caller() -> None:
    class Told(Returns):
        def score_samples(self, samples: Samples) -> Scored:
            ones = np.ones(len(samples))
            return Scored({"ease": ones}, reasons={"ease": [f"for {t}" for t in samples.texts]})

    found = score({"e": Told(None)["ease"]}, Samples(["a", " ", "b", "a"]))
    assert found.reasons == {"e": ["for a", "", "for b", "for a"]}


@pytest.mark.parametrize(
    ("higher", "bounds"),
    [("no", (0, 1)), (None, (0, 1)), (True, (1, 0)), (True, (np.nan, 1)), (False, None)],
)
def test_a_direction_and_a_range_are_checked_when_they_are_declared(
    higher: Any, bounds: Any
) -> None:
    for declare in (ScoreSpec, partial(FunctionScorer, len)):
        with pytest.raises((TypeError, ValueError)):
            declare(higher_is_better=higher, range=bounds)


def test_a_failed_score_has_one_reason() -> None:
    found = score({"e": Returns({"ease": [np.inf, None, 0.5]})["ease"]}, Samples(["a", "b", "c"]))
    assert [reason.count("ease") for reason in dict(found.failures).values()] == [1, 1]
