from __future__ import annotations

import math
import pickle
import statistics
import threading
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import (
    GM,
    Component,
    MeanMinusDeviation,
    Minimum,
    Perplexity,
    Reward,
    Samples,
    fit_scales,
)
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.reward import as_reward
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec


class NumberScorer(Scorer):
    """A scorer that reads its scores from the text: "0.5 2.0" is a gain of 0.5, a cost of 2.

    `higher` says by name whether a score is better when higher.
    """

    specs: Mapping[str, ScoreSpec] = {}

    def __init__(self, **higher: bool) -> None:
        higher = higher or {"gain": True, "cost": False}
        self.specs = {name: ScoreSpec(up, (-math.inf, math.inf)) for name, up in higher.items()}
        self.scored: list[Samples] = []
        self.threads: list[str] = []
        self.releases = 0

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        self.threads.append(threading.current_thread().name)
        rows = [[float(word) for word in text.split()] for text in samples.texts]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.specs))
        return dict(zip(self.specs, table.T, strict=True))

    def release(self) -> None:
        self.releases += 1


def transfer() -> dict[str, Component]:
    """The three scores of style transfer."""
    scorer = NumberScorer(accuracy=True, similarity=True, perplexity=False)
    return {name: scorer[name] for name in scorer.specs}


def judges(*names: str) -> dict[str, Component]:
    """Some of two judges of the same, and a cost, which is better when lower."""
    scorer = NumberScorer(first=True, second=True, cost=False)
    return {name: scorer[name] for name in names}


class Broken(NumberScorer):
    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        raise RuntimeError("the model is gone")


@pytest.fixture
def scorer() -> NumberScorer:
    return NumberScorer()


def samples_with(rows: list[tuple[float, ...]]) -> Samples:
    return Samples([" ".join(map(repr, row)) for row in rows])


# Aggregation

numbers = st.floats(-100, 100)


@given(st.lists(st.tuples(numbers, numbers), max_size=6), st.floats(0, 5), st.floats(-5, 0))
def test_weighted_sum(rows: list[tuple[float, float]], gain: float, cost: float) -> None:
    scorer = NumberScorer()
    batch = Reward({"g": (scorer["gain"], gain), "c": (scorer["cost"], cost)})(samples_with(rows))
    expected = [gain * g + cost * c for g, c in rows]
    assert batch.total.tolist() == pytest.approx(expected, abs=1e-9)
    assert list(batch.components) == ["g", "c"]
    assert batch.components["g"].tolist() == [g for g, _ in rows]
    assert batch.components["c"].tolist() == [c for _, c in rows]  # without the weight
    assert not batch.failed.any()


def test_an_aggregate_by_name_or_a_function_of_the_scores_by_name(scorer: NumberScorer) -> None:
    components = {"g": scorer["gain"], "c": scorer["cost"]}
    reward = Reward(components, aggregate=lambda s: s["g"] ** 2 / s["c"])
    assert reward(["3 2", "1 4"]).total.tolist() == [4.5, 0.25]
    batch = Reward(judges("first", "second"), aggregate="min")(["0.5 2.0 0", "3 1 0", "nan 0 0"])
    assert batch.total.tolist()[:2] == [0.5, 1.0]
    assert batch.failed.tolist() == [False, False, True]


def test_gm_is_the_adjusted_geometric_mean() -> None:
    """The first two rows are published results, with GM 10.0 and 14.2."""
    rows = [(0.818, 0.719, 37.3), (0.819, 0.734, 26.3), (0.5, 0.9, 40.0)]
    sides = transfer()
    components = {"pp": sides["perplexity"], "style": sides["accuracy"], "sim": sides["similarity"]}
    reward = pickle.loads(pickle.dumps(Reward(components, aggregate="gm")))
    total = reward(samples_with(rows)).total
    assert total.tolist() == pytest.approx([10.0, 14.2, 0.0], abs=0.05)
    assert total == pytest.approx(adjusted_gm(*np.transpose(rows)))


def test_gm_takes_the_probability_where_it_is_given() -> None:
    """The component decides: a decision is all or nothing, a probability is graded above t1."""
    probability = NumberScorer(label_probability=True, x=True, y=True)["label_probability"]
    rows = [(1.0, 0.9, 40.0), (0.8, 0.9, 40.0), (0.6, 0.9, 40.0)]
    thresholds = (63, 71, 97, -37)
    for style in (transfer()["accuracy"], probability):
        reward = Reward({**transfer(), "accuracy": style}, aggregate=GM(thresholds))
        total = reward(samples_with(rows)).total
        assert total == pytest.approx([(37 * 19 * 57) ** (1 / 3), (17 * 19 * 57) ** (1 / 3), 0])
    with pytest.raises(ValueError, match="components"):
        Reward({"both": probability, **transfer()}, "gm")


# Ensembles


def test_the_minimum_on_one_scale_is_the_worst_of_all() -> None:
    scales = {"first": (0.5, 0.1), "cost": (30.0, 10.0)}
    reward = Reward(judges("first", "cost"), Minimum(scales))
    batch = reward(["0.7 0 30", "0.7 0 60", "0.3 0 10", "nan 0 1"])
    np.testing.assert_allclose(batch.total, [0.0, -3.0, -2.0, np.nan])
    assert list(batch.components) == ["first", "cost"]  # as the scorer returned them
    assert batch.components["cost"].tolist() == [30, 60, 10, 1]


def test_mean_minus_deviation_and_its_disagreement() -> None:
    reward = Reward(judges("first", "second"), MeanMinusDeviation(penalty=0.5))
    batch = reward(["1 3 0", "2 2 0", "nan 2 0"])
    np.testing.assert_array_equal(batch.components["disagreement"], [1, 0, np.nan])
    np.testing.assert_array_equal(batch.total, [2 - 0.5, 2, np.nan])
    assert batch.failed.tolist() == [False, False, True]
    assert batch.statistics()["disagreement"] == 0.5
    assert reward.derived == ("disagreement",)
    again = pickle.loads(pickle.dumps(reward))(["1 3 0"])
    assert again.total.tolist() == [1.5]


@pytest.mark.parametrize("kind", ["min", "mean_minus_deviation"])
def test_a_failed_member_fails_the_sample_or_is_skipped(kind) -> None:
    rows = ["3 1 0", "nan 2 0", "4 nan 0", "nan nan 0"]
    members = judges("first", "second")
    assert np.isnan(Reward(members, kind)(rows).total).tolist() == [False, True, True, True]
    lowest = 1.0 if kind == "min" else 2.0 - 1.0  # λ = 1
    expected = [lowest, 2.0, 4.0, np.nan]
    reward = Reward(members, kind, failed="skip")
    batch = reward(rows)
    assert type(batch.total) is np.ndarray
    np.testing.assert_array_equal(batch.total, expected)
    assert batch.failed.tolist() == [False, False, False, True]
    assert batch.incomplete.tolist() == [False, True, True, True]
    statistics = batch.statistics()
    assert statistics["fail_rate"] == 0.75
    assert (statistics["first"], statistics["second"]) == (3.5, 1.5)
    logged: list[tuple[str, float]] = []
    (func,) = as_reward_funcs(reward)
    func([""] * 4, rows, log_metric=lambda name, value: logged.append((name, value)))
    assert np.isfinite([value for _, value in logged]).all()
    for aggregate, failed in (("min", "drop"), ("weighted", "skip")):
        with pytest.raises(ValueError, match="failed"):
            Reward(members, aggregate, failed=failed)


def test_scales_are_mean_and_deviation_on_sound_texts() -> None:
    texts = ["1 0 5", "3 0 7", "nan 0 nan"]
    scales = fit_scales(judges("first", "cost"), texts)
    assert scales == {"first": (2.0, 1.0), "cost": (6.0, 1.0)}
    calibrated = Reward(judges("first", "cost"), MeanMinusDeviation(scales))
    assert calibrated(["3 0 5"]).total.tolist() == [1.0]  # a deviation better by both
    for second in ("0", "0.1", "nan"):  # the deviation of 0.1 is 1e-17
        with pytest.raises(ValueError, match="second"):
            fit_scales(judges("second"), [f"1 {second} 5"] * 3)


# Conditions


STYLE, EASY = judges("first", "second").values()


def test_a_component_counts_where_its_condition_is_met() -> None:
    reward = Reward({"style": STYLE, "easy": (EASY, 2.0)}, given={"easy": ("style", 0.5)})
    batch = reward(["0.5 3 0", "0.4 3 0", "0.4 -3 0", "nan 3 0", "0.9 nan 0"])
    np.testing.assert_array_equal(batch.components["easy"], [3, 0, -3, np.nan, np.nan])
    np.testing.assert_allclose(batch.total, [6.5, 0.4, -5.6, np.nan, np.nan])
    assert batch.failed.tolist() == [False, False, False, True, True]
    assert reward["easy"](["0.4 3 0"]).tolist() == [3]  # the score itself


GAIN, COST = NumberScorer()["gain"], NumberScorer()["cost"]
FIRST, SECOND = judges("first", "second").values()
ACCURACY = transfer()["accuracy"]


@pytest.mark.parametrize(
    ("components", "aggregate", "options", "message"),
    [
        # Weights
        ({"c": (COST, 2)}, "weighted", {}, "weight"),
        ({"a": (FIRST, -1)}, "weighted", {}, "weight"),
        ({"a": (FIRST, float("nan"))}, "weighted", {}, "weight"),
        ({"c": (COST, float("-inf"))}, "weighted", {}, "weight"),
        ({"a": (ACCURACY, 1.0), "g": GAIN}, "gm", {}, "weights"),
        (
            {"a": FIRST, "b": Perplexity()["log_likelihood"]},
            "mean_minus_deviation",
            {},
            "scales",
        ),
        ({"a": FIRST, "c": COST}, "min", {}, "scales"),
        ({"a": FIRST}, Minimum({"b": (0.0, 1.0)}), {}, "scales"),
        # Conditions
        (
            {"a": FIRST, "b": SECOND},
            "weighted",
            {"given": {"a": ("b", 0.5), "b": ("a", 0.5)}},
            "given",
        ),
        (
            {"style": FIRST, "pp": Perplexity()["log_likelihood"]},
            "weighted",
            {"given": {"pp": ("style", 0.5)}},
            "given",
        ),
        ({"a": FIRST}, "weighted", {"given": {"a": ("b", 0.5)}}, "given"),
    ],
)
def test_what_can_not_be_combined(components, aggregate, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Reward(components, aggregate, **options)


@pytest.mark.parametrize("pair", ["b", "bb", ("b", "0.5"), ("b", 0.5, 1)])
def test_a_condition_is_a_component_and_a_number(pair) -> None:
    with pytest.raises(TypeError, match="given"):
        Reward({"a": FIRST, "b": SECOND}, given={"a": pair})


def test_an_aggregate_is_an_object_and_not_its_class() -> None:
    with pytest.raises(TypeError, match="aggregate"):
        Reward({"a": FIRST, "b": SECOND}, Minimum)


# Failures


def test_a_failed_sample_is_nan_and_does_not_affect_the_others(scorer: NumberScorer) -> None:
    rows = [(1.0, 4.0), (math.nan, 1.0), (3.0, 2.0), (5.0, 3.0)]
    batch = Reward({"g": scorer["gain"], "c": (scorer["cost"], -0.5)})(samples_with(rows))
    assert batch.failed.tolist() == [False, True, False, False]
    assert math.isnan(batch.total[1])
    assert np.delete(batch.total, 1).tolist() == [-1.0, 2.0, 3.5]
    expected = {"total": [-1.0, 2.0, 3.5], "g": [1.0, 3.0, 5.0], "c": [4.0, 2.0, 3.0]}
    statistics_expected = {"fail_rate": 0.25}
    for name, values in expected.items():
        statistics_expected[name] = statistics.fmean(values)
        statistics_expected[f"{name}_std"] = statistics.pstdev(values)
    assert batch.statistics() == pytest.approx(statistics_expected)


@pytest.mark.parametrize(
    ("texts", "aggregate", "failed"),
    [
        (["nan 0", "1 0"], lambda scores: np.nan_to_num(scores["gain"]), [True, False]),
        # An infinite reward would become an infinite advantage.
        (["-inf 0", "2 0", "inf 0"], "weighted", [True, False, True]),
        # Even where the aggregate does not read the score.
        (["1 inf", "2 0"], lambda scores: scores["gain"], [True, False]),
    ],
)
def test_a_failure_cannot_be_hidden(scorer, texts, aggregate, failed) -> None:
    batch = Reward([scorer["gain"], scorer["cost"]], aggregate=aggregate)(texts)
    assert batch.failed.tolist() == failed
    assert np.isnan(batch.total).tolist() == failed
    assert np.isnan(list(batch.components.values())).any(axis=0).tolist() == failed
    assert batch.statistics()["fail_rate"] == pytest.approx(np.mean(failed))


def test_call_and_future_raise_the_exception_of_a_scorer(scorer: NumberScorer) -> None:
    reward = Reward({"g": scorer["gain"], "b": Broken()["gain"]})
    with pytest.raises(RuntimeError, match="the model is gone"):
        reward(samples_with([(1.0, 1.0)]))
    future = reward.submit(samples_with([(1.0, 1.0)]))
    with pytest.raises(RuntimeError, match="the model is gone"):
        future.result(timeout=120)


def test_an_aggregate_has_one_value_per_sample(scorer: NumberScorer) -> None:
    reward = Reward({"g": scorer["gain"]}, aggregate=lambda scores: scores["g"].mean())
    with pytest.raises(ValueError, match="aggregate"):
        reward(["1 1", "2 2"])


# Threads


def test_a_call_scores_in_the_callers_thread_and_submit_in_one_of_its_own(
    scorer: NumberScorer,
) -> None:
    others = set(threading.enumerate())
    reward = Reward({"g": scorer["gain"], "c": scorer["cost"]})
    reward.release()  # before the first call
    assert reward(["1 0"]).total.tolist() == [1.0]
    assert set(threading.enumerate()) <= others
    futures = [reward.submit([text]) for text in ("2 0", "3 0")]
    assert [future.result(timeout=120).total.tolist() for future in futures] == [[2.0], [3.0]]
    assert [samples.texts[0] for samples in scorer.scored] == ["1 0", "2 0", "3 0"]  # in order
    here, there, also = scorer.threads
    assert here == threading.current_thread().name
    assert here != there == also
    reward.release()
    assert set(threading.enumerate()) <= others
    assert scorer.releases == 2  # once per release, though two of its scores are used
    assert reward(["1 0"]).total.tolist() == [1.0]


def test_submit_does_not_wait_for_the_scores(scorer: NumberScorer) -> None:
    allowed, score = threading.Event(), scorer.score_samples

    def waits(samples: Samples) -> dict[str, Scores]:
        assert allowed.wait(timeout=120)
        return score(samples)

    scorer.score_samples = waits
    future = Reward({"g": scorer["gain"]}).submit(["1 0"])
    assert not future.done()
    allowed.set()
    assert future.result(timeout=120).total.tolist() == [1.0]


def brevity(texts: list[str]) -> list[float | None]:
    return [-float(len(text)) or None for text in texts]


def test_components_may_be_one_or_a_list_and_are_named_by_their_scores(scorer) -> None:
    both = Reward([brevity, (scorer["gain"], 0.5)])
    assert both.weights == {"brevity": 1.0, "gain": 0.5}
    assert Reward(scorer["cost"]).weights == {"cost": -1.0}
    assert Reward((brevity, 2.0)).weights == {"brevity": 2.0}
    assert as_reward(both) is both
    batch = as_reward(brevity)(["abc", ""])
    assert batch.total.tolist()[0] == -3
    assert batch.failed.tolist() == [False, True]
    assert Reward({"r": brevity})(texts=["a"]).components["r"].tolist() == [-1]
