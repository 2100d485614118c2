from __future__ import annotations

import math
import pickle
import statistics
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ctrlreward import (
    Accuracy,
    Component,
    Perplexity,
    Reward,
    RewardBatch,
    Samples,
    Similarity,
    WordVectors,
    fit_scales,
)
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.models.text_cnn import TextCNN, TextCNNConfig, save_text_cnn
from ctrlreward.recipes.scoring_models.text_cnn import frequent_words
from ctrlreward.reward import as_reward
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

NOUNS = ("soup", "waiter", "room", "bus", "coffee")


class NumberScorer(Scorer):
    """A scorer that reads its scores from the text: "0.5 2.0" is a gain of 0.5, a cost of 2."""

    names = ("gain", "cost")
    higher = (True, False)

    def __init__(self) -> None:
        self.scored: list[Samples] = []
        self.threads: list[str] = []
        self.moves: list[str] = []
        self.releases = 0

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        pairs = zip(self.names, self.higher, strict=True)
        return {name: ScoreSpec(higher, (-math.inf, math.inf)) for name, higher in pairs}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        self.threads.append(threading.current_thread().name)
        rows = [[float(word) for word in text.split()] for text in samples.texts]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.names))
        return dict(zip(self.names, table.T, strict=True))

    def to(self, device: str) -> None:
        self.moves.append(device)

    def release(self) -> None:
        self.releases += 1


class BatchScorer(NumberScorer):
    """A scorer whose scores depend on all samples of a batch."""

    pointwise = False


class TransferScorer(NumberScorer):
    """The three scores of style transfer."""

    names = ("accuracy", "similarity", "perplexity")
    higher = (True, True, False)


class ProbabilityScorer(NumberScorer):
    """The probability of the target label, and two other numbers."""

    names = ("label_probability", "x", "y")
    higher = (True, True, True)


class ShareScorer(NumberScorer):
    """Three shares, such as relevances, and the cost of one."""

    names = ("a", "b", "c", "cost")
    higher = (True, True, True, False)

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        pairs = zip(self.names, self.higher, strict=True)
        return {name: ScoreSpec(higher, (0.0, 1.0)) for name, higher in pairs}


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


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
    st.none() | st.floats(0, 5),
    st.none() | st.floats(-5, 0),
)
def test_weighted_sum(
    rows: list[tuple[float, float]], gain: float | None, cost: float | None
) -> None:
    scorer = NumberScorer()
    reward = Reward(
        {
            "g": scorer["gain"] if gain is None else (scorer["gain"], gain),
            "c": scorer["cost"] if cost is None else (scorer["cost"], cost),
        }
    )
    batch = reward(samples_with(rows))
    reward.release()
    weights = (1.0 if gain is None else gain), (-1.0 if cost is None else cost)
    expected = [weights[0] * g + weights[1] * c for g, c in rows]
    assert batch.total.tolist() == pytest.approx(expected, abs=1e-9)
    assert batch.total.dtype == np.float64
    assert list(batch.components) == ["g", "c"]
    assert batch.components["g"].tolist() == [g for g, _ in rows]
    assert batch.components["c"].tolist() == [c for _, c in rows]  # without the weight
    assert not batch.failed.any()
    assert batch.seconds > 0


def test_gm_is_the_adjusted_geometric_mean() -> None:
    """The first two rows are published results, with GM 10.0 and 14.2."""
    transfer = TransferScorer()
    rows = [(0.818, 0.719, 37.3), (0.819, 0.734, 26.3), (0.5, 0.9, 40.0)]
    components = {
        "pp": transfer["perplexity"],
        "style": transfer["accuracy"],
        "sim": transfer["similarity"],
    }
    total = Reward(components, aggregate="gm")(samples_with(rows)).total
    assert total.tolist() == pytest.approx([10.0, 14.2, 0.0], abs=0.05)
    assert total.tolist() == adjusted_gm(*np.transpose(rows)).tolist()


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=5))
@example([[0.0, 1.0, 1.0], [0.25, 0.5, 1.0]])
def test_geometric_mean_of_scores(rows: list[list[float]]) -> None:
    """A score of 0 takes all of the reward; a sample with a failed one fails."""
    shares = ShareScorer()
    reward = Reward([shares[name] for name in "abc"], "geometric_mean")
    batch = reward(samples_with([(*row, 0.0) for row in [*rows, [0.5, math.nan, 0.5]]]))
    expected = [math.prod(row) ** (1 / 3) for row in rows]
    assert batch.total[:-1] == pytest.approx(expected, abs=1e-9)
    assert batch.failed.tolist() == [False] * len(rows) + [True]
    assert np.isnan(batch.total[-1])


def test_gm_takes_the_probability_where_it_is_given(scorer: NumberScorer) -> None:
    """The component decides: a decision is all or nothing, a probability is graded above t1."""
    transfer, probability = TransferScorer(), ProbabilityScorer()
    rows = [(1.0, 0.9, 40.0), (0.8, 0.9, 40.0), (0.6, 0.9, 40.0)]
    thresholds = (63, 71, 97, -37)
    for score, style in (("accuracy", transfer), ("label_probability", probability)):
        sides = {"a": style[score], "s": transfer["similarity"], "p": transfer["perplexity"]}
        reward = Reward(sides, aggregate="gm", thresholds=thresholds)
        assert reward.accuracy_score == score
        assert reward.thresholds == (63.0, 71.0, 97.0, -37.0)
        total = reward(samples_with(rows)).total
        assert total == pytest.approx([(37 * 19 * 57) ** (1 / 3), (17 * 19 * 57) ** (1 / 3), 0])
    weighted = Reward({"g": scorer["gain"]})
    assert (weighted.accuracy_score, weighted.thresholds) == (None, None)
    with pytest.raises(ValueError, match="the components are label_probability, accuracy, sim"):
        Reward({"both": probability["label_probability"],
                **{name: transfer[name] for name in transfer.names}}, "gm")  # fmt: skip


thresholds = st.tuples(*[st.floats(0, 90)] * 2, st.floats(50, 500), st.floats(-500, 0))


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 2, st.floats(1, 600)), min_size=1), thresholds)
def test_gm_with_thresholds_is_eq_1(rows: list[tuple[float, ...]], t: tuple[float, ...]) -> None:
    transfer = TransferScorer()
    sides = {name: transfer[name] for name in transfer.names}
    reward = Reward(sides, aggregate="gm", thresholds=t)  # type: ignore[arg-type]
    expected = [
        (max(100 * acc - t[0], 0) * max(100 * sim - t[1], 0)
         * min(max(t[2] - pp, 0), max(pp - t[3], 0))) ** (1 / 3)
        for acc, sim, pp in rows
    ]  # fmt: skip
    assert reward(samples_with(rows)).total == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("score", ["accuracy", "label_probability"])
def test_copying_the_input_earns_nothing(score: str, tmp_path: Path, one_thread: None) -> None:
    """A trained classifier, and a GM whose other two sides are the best possible for a copy."""
    sour = [f"the {noun} was {word} ." for noun in NOUNS for word in ("awful", "cold", "rude")]
    sweet = [f"the {noun} was {word} ." for noun in NOUNS for word in ("lovely", "warm", "kind")]
    judge = Accuracy(trained_classifier(sour, sweet, tmp_path))
    words = dict(zip((*NOUNS, "was"), np.eye(6).tolist(), strict=True))
    fluency = TransferScorer()
    fluency.score_samples = lambda samples: dict.fromkeys(  # type: ignore[method-assign]
        fluency.names, np.full(len(samples), 30.0)
    )
    sides = {
        "style": judge[score],
        "content": Similarity(WordVectors(words))["similarity"],
        "fluency": fluency["perplexity"],
    }
    reward = Reward(sides, aggregate="gm")
    targets = ["positive"] * len(sour) + ["negative"] * len(sweet)
    copies = reward(sour + sweet, sources=sour + sweet, labels=targets)
    assert copies.components["content"] == pytest.approx(1.0)
    assert copies.total.tolist() == [0.0] * len(targets)
    rewritten = reward(sweet + sour, sources=sour + sweet, labels=targets)
    assert (rewritten.total > 20).all()  # the same content and fluency in the other style


def trained_classifier(sour: list[str], sweet: list[str], folder: Path) -> str:
    """Folder of a TextCNN that has learnt the two sets by heart."""
    words = frequent_words([*sour, *sweet], 1)
    config = TextCNNConfig(words, ("negative", "positive"), 16, (1, 2), 16, 0.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TextCNN(config)
    ids = torch.tensor([config.encode(text) for text in [*sour, *sweet]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    labels = torch.tensor([0] * len(sour) + [1] * len(sweet))
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(ids, ids >= 0), labels).backward()
        optimizer.step()
    save_text_cnn(model, folder)
    return str(folder)


def test_a_callable_gets_the_scores_by_name(scorer: NumberScorer) -> None:
    reward = Reward(
        {"g": scorer["gain"], "c": scorer["cost"]}, aggregate=lambda s: s["g"] ** 2 / s["c"]
    )
    assert reward(samples_with([(3.0, 2.0), (1.0, 4.0)])).total.tolist() == [4.5, 0.25]


def test_an_empty_batch(scorer: NumberScorer) -> None:
    batch = Reward({"g": scorer["gain"]})(Samples([]))
    assert batch.total.shape == batch.failed.shape == batch.components["g"].shape == (0,)
    assert batch.statistics()["fail_rate"] == 0.0


def test_the_minimum_is_the_lowest_score_of_a_sample() -> None:
    class Gains(NumberScorer):
        higher = (True, True)

    scorer = Gains()
    reward = Reward({"a": scorer["gain"], "b": scorer["cost"]}, aggregate="min")
    assert reward(["0.5 2.0", "3 1", "nan 0"]).total.tolist()[:2] == [0.5, 1.0]
    assert reward(["nan 0"]).failed.tolist() == [True]
    assert reward.weights is reward.thresholds is None


# Ensembles


class Judges(NumberScorer):
    """Two judges of the same, and a cost, which is better when lower."""

    names = ("first", "second", "cost")
    higher = (True, True, False)


def judges(*names: str) -> dict[str, Component]:
    scorer = Judges()
    return {name: scorer[name] for name in names}


def test_the_minimum_on_one_scale_is_the_worst_of_all() -> None:
    scales = {"first": (0.5, 0.1), "cost": (30.0, 10.0)}
    reward = Reward(judges("first", "cost"), "min", scales=scales)
    batch = reward(["0.7 0 30", "0.7 0 60", "0.3 0 10", "nan 0 1"])
    np.testing.assert_allclose(batch.total, [0.0, -3.0, -2.0, np.nan])
    assert list(batch.components) == ["first", "cost"]  # as the scorer returned them
    assert batch.components["cost"].tolist() == [30, 60, 10, 1]


def test_mean_minus_deviation_and_its_disagreement() -> None:
    reward = Reward(judges("first", "second"), "mean_minus_deviation", penalty=0.5)
    batch = reward(["1 3 0", "2 2 0", "nan 2 0"])
    np.testing.assert_array_equal(batch.components["disagreement"], [1, 0, np.nan])
    np.testing.assert_array_equal(batch.total, [2 - 0.5, 2, np.nan])
    assert batch.failed.tolist() == [False, False, True]
    assert batch.statistics()["disagreement"] == 0.5
    assert reward.derived == ("disagreement",)
    again = pickle.loads(pickle.dumps(reward))(["1 3 0"])
    assert again.total.tolist() == [1.5]


def test_a_text_that_one_judge_overrates_loses_to_one_that_both_like() -> None:
    members = judges("first", "second")
    overrated, sound = "9 0 0", "4 4 0"
    plain = Reward(members)([overrated, sound]).total
    assert plain[0] > plain[1]
    for guard in ("min", "mean_minus_deviation"):
        conservative = Reward(members, guard)([overrated, sound]).total
        assert conservative[0] < conservative[1], guard


def test_scales_are_mean_and_deviation_on_sound_texts() -> None:
    texts = ["1 0 5", "3 0 7", "nan 0 nan"]
    scales = fit_scales(judges("first", "cost"), texts)
    assert scales == {"first": (2.0, 1.0), "cost": (6.0, 1.0)}
    calibrated = Reward(judges("first", "cost"), "mean_minus_deviation", scales=scales)
    assert calibrated(["3 0 5"]).total.tolist() == [1.0]  # a deviation better by both
    with pytest.raises(
        ValueError, match=r"second is 0\.0 for all 3 texts, so that it has no scale"
    ):
        fit_scales(judges("second"), texts)
    with pytest.raises(ValueError, match=r"second is 0\.1 for all 3 texts"):  # deviation 1e-17
        fit_scales(judges("second"), ["1 0.1 5"] * 3)


# Conditions


def given_style(name: str = "second", at_least: float = 0.5, given: str = "style") -> Component:
    return Component(Judges(), name, given=given, at_least=at_least)


def test_a_component_counts_where_its_condition_is_met() -> None:
    reward = Reward({"style": judges("first")["first"], "easy": (given_style(), 2.0)})
    batch = reward(["0.5 3 0", "0.4 3 0", "0.4 -3 0", "nan 3 0", "0.9 nan 0"])
    np.testing.assert_array_equal(batch.components["easy"], [3, 0, -3, np.nan, np.nan])
    np.testing.assert_allclose(batch.total, [6.5, 0.4, -5.6, np.nan, np.nan])
    assert batch.failed.tolist() == [False, False, False, True, True]
    assert reward["easy"](["0.4 3 0"]).tolist() == [3]  # the score itself


def test_conditions_follow_one_another_in_any_order() -> None:
    components = {
        "third": given_style("second", 1.0, given="next"),
        "next": given_style("second", 0.5, given="style"),
        "style": judges("first")["first"],
    }
    batch = Reward(components)(["0.9 2 0", "0.1 2 0"])
    assert batch.total.tolist() == [4.9, 0.1]


@pytest.mark.parametrize("aggregate", ["min", "mean_minus_deviation"])
def test_a_condition_goes_with_every_aggregate(aggregate) -> None:
    components = {"style": judges("first")["first"], "easy": given_style()}
    reward = Reward(components, aggregate, **({} if aggregate == "min" else {"penalty": 0.0}))
    assert reward(["0.5 3 0", "0.4 3 0"]).total.tolist() == (
        [0.5, 0.0] if aggregate == "min" else [1.75, 0.2]
    )


GAIN, COST = NumberScorer()["gain"], NumberScorer()["cost"]
FIRST, SECOND = Judges()["first"], Judges()["second"]
SHARE, ACCURACY = ShareScorer()["a"], TransferScorer()["accuracy"]


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"stile": FIRST, "easy": given_style()}, r"'style', .* \(did you mean 'stile'\?\): the"),
        ({"a": given_style(given="b"), "b": given_style(given="a")}, "form a cycle, a → b → a"),
        ({"a": given_style(given="a")}, "form a cycle, a → a"),
        ({"style": Judges()["cost"], "easy": given_style()}, "'style', which is better when lower"),
        (
            {"style": FIRST, "pp": Component(Perplexity(), "log_likelihood", "style", 0.5)},
            r"no value of its score \(\(-inf, 0\.0\), better when higher\) is better than 0",
        ),
    ],
)
def test_bad_conditions(components, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reward(components)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"given": "style"}, "a condition needs both"), ({"at_least": math.nan}, "must be finite")],
)
def test_bad_thresholds_of_a_condition(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Component(Judges(), "first", **{"given": "style", **options})


@pytest.mark.parametrize(
    ("aggregate", "options", "message"),
    [
        ("weighted", {"scales": {"a": (0, 1)}}, "not take scales, only .min. and .mean_minus_dev"),
        ("min", {"scales": {"aa": (0, 1)}}, r"are a, b \(did you mean 'a'\?\)"),
        ("min", {"scales": {"a": (0, 1)}}, "no key 'b'"),
        ("min", {"scales": {"a": (0, 0), "b": (0, 1)}}, r"\['a'\] = \(0, 0\), must be a mean and"),
        ("min", {"penalty": 1}, "'min' does not take penalty, only"),
        ("mean_minus_deviation", {"penalty": -1}, "penalty = -1, must be 0 or more"),
    ],
)
def test_bad_scales_and_penalties(aggregate: str, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reward({"a": FIRST, "b": SECOND}, aggregate, **options)


@pytest.mark.parametrize(
    ("components", "aggregate", "message"),
    [
        ({}, "weighted", r"components is empty, must have at least one scorer\['name'\]"),
        ({"g": (GAIN, -0.5)}, "weighted", r"weight -0\.5 rewards the opposite\. Use 0\.5"),
        ({"c": (COST, 2)}, "weighted", r"weight 2\.0 rewards the opposite\. Use -2\.0"),
        ({"g": (GAIN, 1.0), "c": COST}, max, "does not take weights, got weights for g"),
        ({"a": (ACCURACY, 1.0), "g": GAIN}, "gm", "does not take weights, got weights for a"),
        ({"g": (GAIN, 2.0)}, "min", "does not take weights, got weights for g"),
        ({"a": (SHARE, 2.0)}, "geometric_mean", "does not take weights, got weights for a"),
        ({"g": GAIN}, "mean", "must be one of weighted, gm, min, mean_minus_deviation, "),
        ({"g": GAIN, "c": COST}, "min", "but c is better when lower. Pass the scales"),
        (
            {"a": FIRST, "b": Perplexity()["log_likelihood"]},
            "mean_minus_deviation",
            r"on one scale, but their ranges are a \(-inf, inf\), b \(-inf, 0\.0\)",
        ),
        (
            {"a": SHARE, "p": ShareScorer()["cost"]},
            "geometric_mean",
            r"0 or more that are better when higher, but p has the range \(0.0, 1.0\). Use",
        ),
        ({"g": GAIN}, "geometric_mean", r"but g has the range \(-inf, inf\)"),
        ({"a": ACCURACY, "g": GAIN}, "gm", "components are accuracy, gain. Use 'geometric_mean'"),
    ],
)
def test_invalid_components_and_aggregates(components, aggregate, message) -> None:
    with pytest.raises(ValueError, match=message):
        Reward(components, aggregate)


def test_thresholds_are_four_and_those_of_gm(scorer: NumberScorer) -> None:
    with pytest.raises(ValueError, match="aggregate = 'weighted' does not take thresholds, only"):
        Reward({"g": scorer["gain"]}, thresholds=(63, 71, 97, -37))
    transfer = TransferScorer()
    sides = {name: transfer[name] for name in transfer.names}
    for wrong in ((63, 71, 97), (63, 71, math.nan, -37)):
        with pytest.raises(ValueError, match="must be four finite numbers, t1 to t4"):
            Reward(sides, "gm", thresholds=wrong)  # type: ignore[arg-type]


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


def test_an_aggregate_cannot_hide_a_failure(scorer: NumberScorer) -> None:
    reward = Reward({"g": scorer["gain"]}, aggregate=lambda scores: np.nan_to_num(scores["g"]))
    batch = reward(samples_with([(math.nan, 0.0), (1.0, 0.0)]))
    assert batch.failed.tolist() == [True, False]
    assert math.isnan(batch.total[0])


def test_a_total_that_is_not_finite_has_failed(scorer: NumberScorer) -> None:
    """An infinite reward would become an infinite advantage."""
    batch = Reward({"g": scorer["gain"]})(
        samples_with([(-math.inf, 0.0), (2.0, 0.0), (math.inf, 0.0)])
    )
    assert batch.failed.tolist() == [True, False, True]
    assert batch.total[1] == 2.0
    assert np.isnan(batch.total[[0, 2]]).all()
    assert batch.statistics()["fail_rate"] == pytest.approx(2 / 3)


def test_statistics_where_all_failed(scorer: NumberScorer) -> None:
    batch_statistics = Reward({"g": scorer["gain"]})(samples_with([(math.nan, 0.0)])).statistics()
    assert batch_statistics.pop("fail_rate") == 1.0
    assert set(batch_statistics) == {"total", "total_std", "g", "g_std"}
    assert all(math.isnan(value) for value in batch_statistics.values())


def test_call_and_future_raise_the_exception_of_a_scorer(scorer: NumberScorer) -> None:
    reward = Reward({"g": scorer["gain"], "b": Broken()["gain"]})
    with pytest.raises(RuntimeError, match="the model is gone"):
        reward(samples_with([(1.0, 1.0)]))
    future = reward.submit(samples_with([(1.0, 1.0)]))
    assert isinstance(future.exception(), RuntimeError)


def test_a_scorer_must_return_one_value_per_sample(scorer: NumberScorer) -> None:
    scorer.score_samples = lambda samples: {"gain": np.zeros((3, 1))}
    with pytest.raises(
        ValueError,
        match=r"NumberScorer returned 'gain' of shape \(3, 1\) for 3 samples\. Return an array",
    ):
        Reward({"g": scorer["gain"]})(samples_with([(1.0,), (2.0,), (3.0,)]))


def test_an_aggregate_must_return_one_number_per_sample(scorer: NumberScorer) -> None:
    reward = Reward({"g": scorer["gain"]}, aggregate=lambda scores: scores["g"].mean())
    with pytest.raises(
        ValueError, match=r"aggregate returned shape \(\) for 2 samples\. Return one number per"
    ):
        reward(samples_with([(1.0, 1.0), (2.0, 2.0)]))


# Scoring: repeated samples, threads, devices


def test_repeated_samples_are_scored_once(scorer: NumberScorer) -> None:
    over_batch = BatchScorer()
    reward = Reward({"g": scorer["gain"], "c": scorer["cost"], "w": over_batch["gain"]})
    samples = Samples(
        texts=["1 0", "2 0", "1 0", "1 0"],
        labels=["a", "a", "a", "b"],
        prompts=["p", "q", "p", "p"],
        groups=["1", "2", "3", "4"],
    )
    batch = reward(samples)
    (scored,) = scorer.scored  # one call for both of its scores
    assert scored.texts == ("1 0", "2 0", "1 0")
    assert scored.labels == ("a", "a", "b")  # a different label makes a different sample
    assert over_batch.scored == [samples]
    assert batch.components["g"].tolist() == batch.components["w"].tolist() == [1, 2, 1, 1]


@pytest.fixture
def slow() -> Iterator[tuple[NumberScorer, threading.Event]]:
    """A scorer that blocks until the event is set."""
    scorer, allowed = NumberScorer(), threading.Event()
    score = scorer.score_samples

    def waits(samples: Samples) -> dict[str, Scores]:
        assert allowed.wait(timeout=30)
        return score(samples)

    scorer.score_samples = waits
    yield scorer, allowed
    allowed.set()


def test_submit_does_not_block(slow: tuple[NumberScorer, threading.Event]) -> None:
    scorer, allowed = slow
    reward = Reward({"g": scorer["gain"]})
    futures = [reward.submit(samples_with([(value, 0.0)])) for value in (1.0, 2.0)]
    assert all(isinstance(future, Future) and not future.done() for future in futures)
    allowed.set()
    batches: list[RewardBatch] = [future.result(timeout=30) for future in futures]
    assert [batch.total.tolist() for batch in batches] == [[1.0], [2.0]]
    assert [samples.texts[0] for samples in scorer.scored] == ["1.0 0.0", "2.0 0.0"]
    assert len(set(scorer.threads)) == 1  # in order, on the reward's own thread
    assert scorer.threads[0].startswith("ctrlreward")
    assert scorer.threads[0] != threading.current_thread().name


def test_a_call_scores_in_the_callers_thread(scorer: NumberScorer) -> None:
    others = set(threading.enumerate())
    assert Reward({"g": scorer["gain"]})(samples_with([(1.0, 0.0)])).total.tolist() == [1.0]
    assert scorer.threads == [threading.current_thread().name]
    assert set(threading.enumerate()) == others


def test_release_frees_models_and_thread_until_the_next_call(scorer: NumberScorer) -> None:
    reward = Reward({"g": scorer["gain"], "c": scorer["cost"]})
    reward.release()  # before the first call
    assert scorer.releases == 1
    others = set(threading.enumerate())
    first = reward.submit(samples_with([(1.0, 1.0)])).result(timeout=30)
    (worker,) = set(threading.enumerate()) - others
    reward.release()
    assert not worker.is_alive()
    assert scorer.releases == 2  # once per release, though two of its scores are used
    assert reward(samples_with([(1.0, 1.0)])).total.tolist() == first.total.tolist()
    reward.release()


def test_device_moves_each_scorer_once(scorer: NumberScorer) -> None:
    other = BatchScorer()
    components = {"g": scorer["gain"], "c": scorer["cost"], "o": other["gain"]}
    Reward(components)
    assert (scorer.moves, other.moves) == ([], [])
    Reward(components, device="cpu")
    assert (scorer.moves, other.moves) == (["cpu"], ["cpu"])


# Components without a mapping.


def brevity(texts: list[str]) -> list[float | None]:
    return [-float(len(text)) or None for text in texts]


def test_components_may_be_one_or_a_list_and_are_named_by_their_scores(
    scorer: NumberScorer,
) -> None:
    both = Reward([brevity, (scorer["gain"], 0.5)])
    assert both.weights == {"brevity": 1.0, "gain": 0.5}
    assert Reward(scorer["cost"]).weights == {"cost": -1.0}
    assert Reward((brevity, 2.0)).weights == {"brevity": 2.0}
    assert as_reward(both) is both
    batch = as_reward(brevity)(["abc", ""])
    assert batch.total.tolist()[0] == -3
    assert batch.failed.tolist() == [False, True]
    assert Reward({"r": brevity})(texts=["a"]).components["r"].tolist() == [-1]


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ([brevity, brevity], ValueError, r"components\[1\] is the second .* 'brevity'. Pass a map"),
        ([NumberScorer()], ValueError, r"components\[0\] is a NumberScorer with 2 scores"),
        (3, TypeError, "the reward is a int, must be one score of a scorer, .* or a function"),
        ([], ValueError, "components is empty"),
        ([Component(brevity, "r")], TypeError, r"Component of .* Use FunctionScorer\(function\)"),
        ({"r": Reward(brevity)}, TypeError, r"components\['r'\] is a Reward. Pass its components"),
        (
            {"r": (brevity, "2")},
            TypeError,
            r"components\['r'\] has the weight '2', which is not a number",
        ),
    ],
)
def test_components_that_are_none(components: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Reward(components)  # type: ignore[arg-type]


def test_a_component_of_infinity_fails(scorer: NumberScorer) -> None:
    """Even where the aggregate does not read it."""
    both = {name: scorer[name] for name in scorer.names}
    reward = Reward(both, aggregate=lambda scores: scores["gain"])
    batch = reward(["1.0 inf", "2.0 0.0"])
    np.testing.assert_array_equal(batch.components["cost"], [np.nan, 0.0])
    assert batch.failed.tolist() == [True, False]
