from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import Reward, RewardBatch, Samples
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec


class Said(Scorer):
    """Scores by the numbers that a text says: "0.5 2.0" is a gain of 0.5 and a cost of 2."""

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

    def score(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        self.threads.append(threading.current_thread().name)
        rows = [[float(word) for word in text.split()] for text in samples.texts]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.names))
        return dict(zip(self.names, table.T, strict=True))

    def to(self, device: str) -> None:
        self.moves.append(device)

    def release(self) -> None:
        self.releases += 1


class Whole(Said):
    """A score that depends on all samples at once."""

    pointwise = False


class Sides(Said):
    """The three sides of transfer quality."""

    names = ("accuracy", "similarity", "perplexity")
    higher = (True, True, False)


class Broken(Said):
    def score(self, samples: Samples) -> dict[str, Scores]:
        raise RuntimeError("the model is gone")


@pytest.fixture
def said() -> Said:
    return Said()


def said_by(rows: list[tuple[float, ...]]) -> Samples:
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
    said = Said()
    reward = Reward(
        {
            "g": said["gain"] if gain is None else (said["gain"], gain),
            "c": said["cost"] if cost is None else (said["cost"], cost),
        }
    )
    batch = reward(said_by(rows))
    reward.release()
    by_direction = (1.0 if gain is None else gain), (-1.0 if cost is None else cost)
    expected = [by_direction[0] * g + by_direction[1] * c for g, c in rows]
    assert batch.total.tolist() == pytest.approx(expected, abs=1e-9)
    assert batch.total.dtype == np.float64
    assert list(batch.components) == ["g", "c"]
    assert batch.components["g"].tolist() == [g for g, _ in rows]
    assert batch.components["c"].tolist() == [c for _, c in rows]  # as it was scored
    assert not batch.failed.any()
    assert batch.seconds > 0


def test_gm_is_the_adjusted_geometric_mean() -> None:
    """The first two rows are published ones, with GM 10.0 and 14.2."""
    sides = Sides()
    rows = [(0.818, 0.719, 37.3), (0.819, 0.734, 26.3), (0.5, 0.9, 40.0)]
    components = {"pp": sides["perplexity"], "style": sides["accuracy"], "sim": sides["similarity"]}
    total = Reward(components, aggregate="gm")(said_by(rows)).total
    assert total.tolist() == pytest.approx([10.0, 14.2, 0.0], abs=0.05)
    assert total.tolist() == adjusted_gm(*np.transpose(rows)).tolist()


def test_a_callable_gets_the_scores_by_name(said: Said) -> None:
    reward = Reward(
        {"g": said["gain"], "c": said["cost"]}, aggregate=lambda s: s["g"] ** 2 / s["c"]
    )
    assert reward(said_by([(3.0, 2.0), (1.0, 4.0)])).total.tolist() == [4.5, 0.25]


def test_no_samples_get_no_rewards(said: Said) -> None:
    batch = Reward({"g": said["gain"]})(Samples([]))
    assert batch.total.shape == batch.failed.shape == batch.components["g"].shape == (0,)
    assert batch.statistics()["fail_rate"] == 0.0


@pytest.mark.parametrize(
    ("components", "aggregate", "message"),
    [
        ({}, "weighted", r"components is empty: give at least one scorer\['name'\]"),
        (
            {"g": (Said()["gain"], -0.5)},
            "weighted",
            r"g is better when higher, and its weight -0\.5 rewards the opposite: give 0\.5",
        ),
        (
            {"c": (Said()["cost"], 2)},
            "weighted",
            r"c is better when lower, and its weight 2\.0 rewards the opposite: give -2\.0",
        ),
        (
            {"g": (Said()["gain"], 1.0), "c": Said()["cost"]},
            lambda scores: scores["g"],
            r"weights of g mean nothing to aggregate=<function",
        ),
        (
            {"a": (Sides()["accuracy"], 1.0), "s": Sides()["similarity"]},
            "gm",
            "weights of a mean nothing to aggregate='gm': give the components alone",
        ),
        ({"g": Said()["gain"]}, "mean", "aggregate = 'mean': give 'weighted', 'gm' or a callable"),
        (
            {"a": Sides()["accuracy"], "g": Said()["gain"]},
            "gm",
            "takes one accuracy, one similarity and one perplexity; these are accuracy, gain",
        ),
        (
            {name: Sides()[name.rstrip("2")] for name in (*Sides.names, "accuracy2")},
            "gm",
            "these are accuracy, similarity, perplexity, accuracy",
        ),
    ],
)
def test_what_can_not_be_combined(components, aggregate, message) -> None:
    with pytest.raises(ValueError, match=message):
        Reward(components, aggregate)


# Failures


def test_a_failed_sample_is_nan_and_counted_and_spoils_no_other(said: Said) -> None:
    rows = [(1.0, 4.0), (math.nan, 1.0), (3.0, 2.0), (5.0, 3.0)]
    batch = Reward({"g": said["gain"], "c": (said["cost"], -0.5)})(said_by(rows))
    assert batch.failed.tolist() == [False, True, False, False]
    assert math.isnan(batch.total[1])
    assert np.delete(batch.total, 1).tolist() == [-1.0, 2.0, 3.5]
    expected = {"total": [-1.0, 2.0, 3.5], "g": [1.0, 3.0, 5.0], "c": [4.0, 2.0, 3.0]}
    wanted = {"fail_rate": 0.25}
    for name, values in expected.items():
        wanted[name] = statistics.fmean(values)
        wanted[f"{name}_std"] = statistics.pstdev(values)
    assert batch.statistics() == pytest.approx(wanted)


def test_an_aggregate_can_not_hide_a_failure(said: Said) -> None:
    reward = Reward({"g": said["gain"]}, aggregate=lambda scores: np.nan_to_num(scores["g"]))
    batch = reward(said_by([(math.nan, 0.0), (1.0, 0.0)]))
    assert batch.failed.tolist() == [True, False]
    assert math.isnan(batch.total[0])


def test_a_total_that_is_no_finite_number_has_failed(said: Said) -> None:
    """An infinite reward would be an infinite advantage."""
    batch = Reward({"g": said["gain"]})(said_by([(-math.inf, 0.0), (2.0, 0.0), (math.inf, 0.0)]))
    assert batch.failed.tolist() == [True, False, True]
    assert batch.total[1] == 2.0
    assert np.isnan(batch.total[[0, 2]]).all()
    assert batch.statistics()["fail_rate"] == pytest.approx(2 / 3)


def test_statistics_where_all_failed(said: Said) -> None:
    found = Reward({"g": said["gain"]})(said_by([(math.nan, 0.0)])).statistics()
    assert found.pop("fail_rate") == 1.0
    assert set(found) == {"total", "total_std", "g", "g_std"}
    assert all(math.isnan(value) for value in found.values())


def test_what_a_scorer_raises_reaches_call_and_future(said: Said) -> None:
    reward = Reward({"g": said["gain"], "b": Broken()["gain"]})
    with pytest.raises(RuntimeError, match="the model is gone"):
        reward(said_by([(1.0, 1.0)]))
    future = reward.submit(said_by([(1.0, 1.0)]))
    assert isinstance(future.exception(), RuntimeError)


def test_a_scorer_gives_one_value_per_sample(said: Said) -> None:
    said.score = lambda samples: {"gain": np.zeros((3, 1))}
    with pytest.raises(
        ValueError, match=r"Said returned 'gain' of shape \(3, 1\) for 3 samples: return an array"
    ):
        Reward({"g": said["gain"]})(said_by([(1.0,), (2.0,), (3.0,)]))


def test_an_aggregate_gives_one_number_per_sample(said: Said) -> None:
    reward = Reward({"g": said["gain"]}, aggregate=lambda scores: scores["g"].mean())
    with pytest.raises(
        ValueError, match=r"aggregate returned shape \(\) for 2 samples: return one number per"
    ):
        reward(said_by([(1.0, 1.0), (2.0, 2.0)]))


# What is scored, where and when


def test_repeated_samples_are_scored_once(said: Said) -> None:
    whole = Whole()
    reward = Reward({"g": said["gain"], "c": said["cost"], "w": whole["gain"]})
    samples = Samples(
        texts=["1 0", "2 0", "1 0", "1 0"],
        labels=["a", "a", "a", "b"],
        prompts=["p", "q", "r", "s"],
    )
    batch = reward(samples)
    (scored,) = said.scored  # once, for both of its scores
    assert scored.texts == ("1 0", "2 0", "1 0")
    assert scored.labels == ("a", "a", "b")  # another label is another sample
    assert whole.scored == [samples]
    assert batch.components["g"].tolist() == batch.components["w"].tolist() == [1, 2, 1, 1]


@pytest.fixture
def slow() -> Iterator[tuple[Said, threading.Event]]:
    """A scorer that waits until it is allowed to go on."""
    said, allowed = Said(), threading.Event()
    score = said.score

    def waits(samples: Samples) -> dict[str, Scores]:
        assert allowed.wait(timeout=30)
        return score(samples)

    said.score = waits
    yield said, allowed
    allowed.set()


def test_submit_leaves_the_caller_free(slow: tuple[Said, threading.Event]) -> None:
    said, allowed = slow
    reward = Reward({"g": said["gain"]})
    futures = [reward.submit(said_by([(value, 0.0)])) for value in (1.0, 2.0)]
    assert all(isinstance(future, Future) and not future.done() for future in futures)
    allowed.set()
    batches: list[RewardBatch] = [future.result(timeout=30) for future in futures]
    assert [batch.total.tolist() for batch in batches] == [[1.0], [2.0]]
    assert [samples.texts[0] for samples in said.scored] == ["1.0 0.0", "2.0 0.0"]
    assert len(set(said.threads)) == 1  # one after the other, on a thread of the reward's own
    assert said.threads[0].startswith("ctrlreward")
    assert said.threads[0] != threading.current_thread().name


def test_a_call_scores_in_the_callers_thread(said: Said) -> None:
    others = set(threading.enumerate())
    assert Reward({"g": said["gain"]})(said_by([(1.0, 0.0)])).total.tolist() == [1.0]
    assert said.threads == [threading.current_thread().name]
    assert set(threading.enumerate()) == others


def test_a_reward_that_stepped_aside_computes_on_one_core(said: Said) -> None:
    seen: list[int] = []
    score = said.score
    said.score = lambda samples: seen.append(torch.get_num_threads()) or score(samples)
    reward = Reward({"g": said["gain"]})
    reward.yield_cpu()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert reward.submit(said_by([(1.0, 0.0)])).result(timeout=30).total.tolist() == [1.0]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    reward.release()
    assert seen == [1]


def test_release_frees_models_and_thread_and_the_reward_can_be_used_again(said: Said) -> None:
    reward = Reward({"g": said["gain"], "c": said["cost"]})
    reward.release()  # nothing has begun yet
    assert said.releases == 1
    others = set(threading.enumerate())
    first = reward.submit(said_by([(1.0, 1.0)])).result(timeout=30)
    (worker,) = set(threading.enumerate()) - others
    reward.release()
    assert not worker.is_alive()
    assert said.releases == 2  # once, though two of its scores are used
    assert reward(said_by([(1.0, 1.0)])).total.tolist() == first.total.tolist()
    reward.release()


def test_device_moves_each_scorer_once(said: Said) -> None:
    other = Whole()
    components = {"g": said["gain"], "c": said["cost"], "o": other["gain"]}
    Reward(components)
    assert (said.moves, other.moves) == ([], [])
    Reward(components, device="cpu")
    assert (said.moves, other.moves) == (["cpu"], ["cpu"])
