"""The learned aggregate: recovered from data of the model, and equal to a logistic regression."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from ctrlreward import Reward, Samples, Scorer, ScoreSpec
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.functional.preferences import (
    Curve,
    LearnedAggregate,
    Preferences,
    agreement_of_gains,
    fit_aggregate,
    pairwise_preferences,
)

NAN = float("nan")


def simulated(n: int, seed: int = 0) -> Preferences:
    """Preferences by 2 · quality - log(perplexity), which a third score says nothing about."""
    draw = np.random.default_rng(seed)
    quality, noise = draw.uniform(size=(2, 2, n))
    perplexity = np.exp(draw.normal(4, 1, size=(2, n)))
    f = 2 * quality - np.log(perplexity)
    swap = draw.uniform(size=n) > expit(f[0] - f[1])
    first, second = np.where(swap, 1, 0), np.where(swap, 0, 1)
    rows = np.arange(n)
    scores = {"quality": quality, "noise": noise, "perplexity": perplexity}
    return Preferences(
        {name: each[first, rows] for name, each in scores.items()},
        {name: each[second, rows] for name, each in scores.items()},
        {"quality": True, "noise": True, "perplexity": False},
        [i // 4 for i in rows],
    )


def test_curves_of_the_model_are_recovered() -> None:
    preferences = simulated(10_000)
    learned = fit_aggregate(preferences, resamples=20)
    curve = learned.curves["perplexity"]
    at = np.exp([3.0, 4.0, 5.0])
    rises = np.diff(curve(at))
    # log is bent between the knots, which are quantiles.
    assert rises == pytest.approx([-1.0, -1.0], abs=0.25)
    quality = learned.curves["quality"](np.array([0.1, 0.5, 0.9]))
    assert np.diff(quality) == pytest.approx([0.8, 0.8], abs=0.15)
    weights = learned.weights
    assert weights is not None
    assert weights["noise"].value < 0.3
    low, high = weights["quality"].low, weights["quality"].high
    assert 1.5 < low < weights["quality"].value < high < 2.5
    # The share that the model itself gets right of other preferences.
    other = simulated(10_000, seed=1)
    gains = learned(other.preferred) - learned(other.rejected)
    agreement = learned.agreement
    assert agreement is not None
    assert agreement.low < agreement_of_gains(gains, range(10_000)).value < agreement.high


@pytest.mark.parametrize(("right", "wrong"), [(30, 10), (10, 30), (7, 0)])
def test_one_binary_score_is_the_log_odds_of_a_count(right: int, wrong: int) -> None:
    n = right + wrong
    good = np.repeat([1.0, 0.0], [right, wrong])
    preferences = Preferences({"ok": good}, {"ok": 1 - good}, {"ok": True})
    learned = fit_aggregate(preferences, penalty=1e-9 if wrong else 1.0, folds=2, resamples=2)
    height = learned.curves["ok"].worth[-1]
    if right > wrong > 0:
        assert height == pytest.approx(logit(right / n), abs=1e-3)
    elif wrong > right:
        assert height == 0  # never against its direction
    else:
        assert height == pytest.approx(n * expit(-height), abs=1e-3)  # the prior keeps it finite


def test_equal_to_a_logistic_regression_of_statsmodels() -> None:
    statsmodels = pytest.importorskip("statsmodels.api")
    preferences = simulated(400)
    learned = fit_aggregate(preferences, segments=1, penalty=0.0, resamples=2)
    sides = [
        np.stack(
            [
                np.clip((side[name] - curve.scores[0]) / (curve.scores[-1] - curve.scores[0]), 0, 1)
                for name, curve in learned.curves.items()
            ]
        )
        for side in (preferences.preferred, preferences.rejected)
    ]
    # A random half is turned round, since a regression needs both outcomes.
    turned = np.random.default_rng(0).integers(2, size=400)
    rows = ((sides[0] - sides[1]) * (2 * turned - 1)).T
    fit = statsmodels.Logit(turned, rows).fit(disp=0)
    ours = [curve.worth[-1] - curve.worth[0] for curve in learned.curves.values()]
    assert min(abs(fit.params)) > 0.01  # no bound is active
    np.testing.assert_allclose(ours, fit.params, atol=1e-3)


scores = st.lists(st.floats(-1e6, 1e6), min_size=24, max_size=24)


def test_a_curve_does_not_pass_its_next_knot_by_rounding() -> None:
    curve = Curve((-11577.0, 1.2593583288949113e-266, 1.0), (0.0, *[0.40105696696289334] * 2))
    assert (np.diff(curve(np.array([-1e9, -5e3, 0.0, 1e-300, 0.5, 1.0, 1e9]))) >= 0).all()
    assert np.isnan(curve(np.array([np.nan]))).all()


@given(scores, scores, st.booleans(), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_better_scores_never_lower_the_total(first, second, higher, segments) -> None:
    better, worse = (
        {"a": np.array(side[:12]), "b": np.array(side[12:])} for side in (first, second)
    )
    preferences = Preferences(better, worse, {"a": True, "b": higher}, [i // 2 for i in range(12)])
    learned = fit_aggregate(preferences, segments=segments, folds=2, resamples=2)
    grid = np.linspace(-2e6, 2e6, 101)
    for name, sign in (("a", 1), ("b", 1 if higher else -1)):
        assert (sign * np.diff(learned.curves[name](grid)) >= 0).all()


def test_pairs_with_a_missing_score_are_left_out_and_counted() -> None:
    preferences = simulated(60)
    preferences.preferred["noise"][:3] = NAN
    preferences.rejected["perplexity"][3] = math.inf
    learned = fit_aggregate(preferences, resamples=2)
    assert (learned.pairs, learned.failed) == (56, 4)
    kept = Preferences(
        {n: v[4:] for n, v in preferences.preferred.items()},
        {n: v[4:] for n, v in preferences.rejected.items()},
        preferences.higher_is_better,
        list(preferences.groups or ())[4:],
    )
    assert fit_aggregate(kept, resamples=2).curves == learned.curves


def test_groups_are_held_out_whole() -> None:
    # The score rises within each group only: what is learned from the others says nothing about it.
    group = np.repeat(np.arange(40.0), 5)
    better, worse = {"v": group + 0.1}, {"v": group - 0.1}
    for groups, expected in ((group.tolist(), 0.5), (None, 1.0)):
        learned = fit_aggregate(
            Preferences(better, worse, {"v": True}, groups), segments=79, resamples=2
        )
        assert learned.agreement is not None
        assert learned.agreement.value == pytest.approx(expected, abs=0.03)


def test_agreement_counts_ties_as_one_half_and_draws_groups() -> None:
    found = agreement_of_gains([1.0, 1.0, -1.0, 0.0], ["a", "a", "b", "b"])
    assert (found.value, found.low, found.high) == (0.625, 0.25, 1.0)


class Length(Scorer):
    def __init__(self, higher: bool = True) -> None:
        self.higher = higher

    @property
    def specs(self) -> dict[str, ScoreSpec]:
        return {"length": ScoreSpec(self.higher, (0.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
        values = [float(len(text)) if text else NAN for text in samples.texts]
        return {"length": np.array(values)}


LEARNED = LearnedAggregate({"length": Curve((2.0, 6.0), (0.0, 2.0))})


def test_a_reward_takes_it_from_memory_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    fitted = fit_aggregate(simulated(60), resamples=2)
    fitted.save(path)
    assert LearnedAggregate.load(path) == fitted
    LEARNED.save(path)
    for aggregate in (LEARNED, str(path), pickle.loads(pickle.dumps(LEARNED))):
        batch = Reward({"length": Length()}, aggregate)(["a", "abcd", "abcdefgh", ""])
        np.testing.assert_array_equal(batch.total, [0.0, 1.0, 2.0, NAN])
        assert batch.failed.tolist() == [False, False, False, True]


def test_a_reward_in_yaml_takes_the_file(tmp_path: Path) -> None:
    LEARNED.save(tmp_path / "learned.json")
    scorer = f"{__name__}.Length"
    (tmp_path / "reward.yaml").write_text(
        f"components:\n  length: {{scorer: {scorer}}}\naggregate: {tmp_path}/learned.json\n"
    )
    assert build_reward(tmp_path / "reward.yaml")(["abcd"]).total == [1.0]


def test_a_reward_of_other_components_is_refused() -> None:
    with pytest.raises(ValueError, match="reads the components length, but length is missing"):
        Reward({"size": Length()}, LEARNED)
    with pytest.raises(ValueError, match="length is better when lower, but the learned aggregate"):
        Reward({"length": Length(higher=False)}, LEARNED)
    with pytest.raises(ValueError, match="does not take weights"):
        Reward({"length": (Length(), 2.0)}, LEARNED)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "no JSON",
        json.dumps(
            {
                "curves": {"a": {"scores": [0, 1, 2], "worth": [0, 2, 1]}},
                "weights": None,
                "agreement": None,
                "pairs": 1,
                "failed": 0,
            }
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"learned\.json is not an aggregate of fit_aggregate"):
        LearnedAggregate.load(path)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="rejected has the scores b, must have the names in"):
        Preferences({"a": [1.0]}, {"b": [1.0]}, {"a": True})
    with pytest.raises(ValueError, match=r"rejected\['a'\] has shape \(2,\), must be \(1,\)"):
        Preferences({"a": [1.0]}, {"a": [1.0, 2.0]}, {"a": True})
    with pytest.raises(ValueError, match="one item per pair, got 2 for 1 pairs"):
        Preferences({"a": [1.0]}, {"a": [1.0]}, {"a": True}, ["x", "y"])
    with pytest.raises(ValueError, match="must come from 5 or more groups, got 1"):
        fit_aggregate(Preferences({"a": [1.0]}, {"a": [1.0]}, {"a": True}))
    with pytest.raises(TypeError, match="preferences is a dict, must be Preferences: ctrlreward"):
        fit_aggregate({"chosen": ["a"], "rejected": ["b"]})
    with pytest.raises(ValueError, match="folds must be 2 or more, got 1"):
        fit_aggregate(simulated(8), folds=1)
    with pytest.raises(ValueError, match="penalty must be 0 or more, got -1"):
        fit_aggregate(simulated(8), penalty=-1)


# Preferences from ratings


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), max_size=10),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_pairs_equal_brute_force(rated: list[tuple[int, str]], margin: float) -> None:
    expected = {
        (i, j)
        for i, (high, one) in enumerate(rated)
        for j, (low, other) in enumerate(rated)
        if one == other and high - low > margin
    }
    preferred, rejected = pairwise_preferences([r for r, _ in rated], [c for _, c in rated], margin)
    assert len(preferred) == len(rejected) == len(expected)
    assert set(zip(preferred.tolist(), rejected.tolist(), strict=True)) == expected


def test_a_nan_rating_is_in_no_pair() -> None:
    preferred, rejected = pairwise_preferences([5.0, NAN, 3.0], ["x", "x", "x"])
    assert (preferred.tolist(), rejected.tolist()) == ([0], [2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], ["a"]), r"ratings must have one value per item, got shape \(2,\) for 1 items"),
        (([1, 2], ["a", "a"], -0.5), r"margin must be 0 or more, got -0\.5"),
    ],
)
def test_bad_ratings(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pairwise_preferences(*arguments)
