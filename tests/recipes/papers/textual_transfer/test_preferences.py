from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ctrlreward import Samples
from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.papers.textual_transfer.preferences import (
    GMFit,
    agreement,
    fit_gm,
    main,
    pairwise_preferences,
    style_match,
)
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

PLANTED = (20.0, 30.0, 300.0, -10.0)

Pairs = tuple[np.ndarray, np.ndarray]


def outputs(n: int, seed: int) -> np.ndarray:
    """Draw accuracy, similarity and perplexity of outputs; most have GM 0 by default."""
    random = np.random.default_rng(seed)
    perplexity = np.exp(random.normal(4, 1, n)).clip(1)
    return np.column_stack([random.uniform(size=(n, 2)), perplexity])


def planted(n: int, seed: int, noise: float = 0.0) -> Pairs:
    """Draw pairs with clear preferences by GM under PLANTED, eight outputs per item."""
    random = np.random.default_rng([seed, 1])  # independent of the scores
    scores = outputs(n, seed)
    ratings = adjusted_gm(*scores.T, PLANTED) + noise * random.normal(size=n)
    preferred, rejected = pairwise_preferences(ratings, [i // 8 for i in range(n)], margin=1.0)
    return scores[preferred], scores[rejected]


def total_loss(pairs: Pairs, thresholds: tuple[float, float, float, float], scale: float) -> float:
    """Sum the hinge losses in plain Python; a scale of 1 is the paper's loss."""
    t1, t2, t3, t4 = thresholds

    def gm(row: np.ndarray) -> float:
        acc, sim, pp = row
        product = max(100 * acc - t1, 0) * max(100 * sim - t2, 0) * max(min(t3 - pp, pp - t4), 0)
        return float(product ** (1 / 3))

    return sum(max(0.0, scale * (gm(b) - gm(a)) + 1) for a, b in zip(*pairs, strict=True))


# Fitting


@pytest.fixture(scope="module")
def noisy() -> tuple[Pairs, GMFit]:
    pairs = planted(160, seed=1, noise=8.0)
    return pairs, fit_gm(*pairs)


def test_planted_preferences_are_recovered_on_unseen_items() -> None:
    fit = fit_gm(*planted(160, seed=2))
    unseen = planted(400, seed=3)
    assert agreement(*unseen, fit.thresholds)[0] > 0.95
    assert agreement(*unseen)[0] < 0.5


def test_no_other_thresholds_and_scale_are_better(noisy: tuple[Pairs, GMFit]) -> None:
    pairs, fit = noisy
    assert fit.loss == pytest.approx(total_loss(pairs, fit.thresholds, fit.scale))
    assert agreement(*pairs, fit.thresholds)[0] > agreement(*pairs)[0]
    grid = itertools.product((0, 20, 40), (0, 20, 40), (100, 300), (-100, -10))
    for point in [GM_THRESHOLDS, PLANTED, *grid]:
        for factor in (0.0, 0.5, 1.0, 2.0):
            assert fit.loss <= total_loss(pairs, point, factor * fit.scale)


@pytest.mark.soak
def test_high_perplexities_make_the_papers_loss_prefer_nothing() -> None:
    # The reason for fitting the scale: the paper's loss is smallest if every GM is 0.
    better, worse = planted(80, seed=8, noise=60.0)
    better, worse = better * [1, 1, 1000], worse * [1, 1, 1000]
    fits = [fit_gm(better, worse, scale=scale).thresholds for scale in (1.0, None)]
    assert agreement(better, worse, fits[0])[1] > 0.9
    assert agreement(better, worse, fits[1])[0] > 0.5


def test_the_default_is_kept_if_nothing_can_be_learned() -> None:
    same = outputs(5, seed=6)
    fit = fit_gm(same, same)  # all gains are 0, so every t costs 1 per pair
    assert fit.thresholds == GM_THRESHOLDS
    assert (fit.scale, fit.loss) == (0, 5)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 5, math.nan]), st.sampled_from("abc")), max_size=10
    ),
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


# Table 5 and the fit on a rated file, by judges that read their scores from the texts

SCORES = {
    "Accuracy": ("accuracy", "label_probability"),
    "Similarity": ("similarity",),
    "Perplexity": ("perplexity", "log_likelihood"),
}


def judged(text: str) -> tuple[float, float, float]:
    """Return probability, similarity and perplexity as a text states them: `0.9 0.8 50`."""
    probability, similarity, perplexity = map(float, text.split())
    return probability, similarity, perplexity


class StandIn(Scorer):
    """A scorer of one component."""

    def __init__(self, kind: str, score_end: bool = False) -> None:
        self.kind, self.factor = kind, 2.0 if score_end else 1.0

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        better = self.kind != "Perplexity"
        return {name: ScoreSpec(better, (-np.inf, np.inf)) for name in SCORES[self.kind]}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        probability, similarity, perplexity = np.array([*map(judged, samples.texts)]).T
        perplexity = self.factor * perplexity
        values = {
            "accuracy": (probability > 0.5).astype(float),
            "label_probability": probability,
            "similarity": similarity,
            "perplexity": perplexity,
            "log_likelihood": -np.log(perplexity),
        }
        return {name: values[name] for name in SCORES[self.kind]}


@pytest.fixture
def rated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Write 24 items by four systems, rated by a noisy GM, and replace the scorers."""
    monkeypatch.chdir(tmp_path)
    for name in SCORES:
        fake = lambda *_, kind=name, **given: StandIn(kind, **given)  # noqa: E731
        monkeypatch.setattr(f"ctrlreward.scorers.{name}", fake)
    random = np.random.default_rng(3)
    table = []
    for i in range(96):
        probability, similarity = random.uniform(0.3, 1.0, 2).round(2)
        perplexity = random.integers(20, 120)
        gm = adjusted_gm(probability, similarity, perplexity, (20, 10, 200, -40))
        rating = float(gm + 8 * random.normal())
        row = {"item": i // 4, "target": "positive", "system": "abcd"[i % 4], "source": f"{i // 4}"}
        row["output"] = f"{probability} {similarity} {perplexity}"
        table.append({**row, "grammaticality": rating, "sentiment": 1 + i % 5, "topic": rating})
    with open("rated.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return table


def test_table_5_and_fits_equal_plain_computations(rated: list[dict[str, Any]]) -> None:
    main(["ratings", "rated.csv", "--classifier=folder", "--score-end", "--json=found.json"])
    found = json.loads(Path("found.json").read_text())
    probability, similarity, perplexity = np.array([judged(row["output"]) for row in rated]).T
    inputs = np.stack([probability, similarity, 2 * perplexity], axis=1)  # the end counts
    topic = [row["topic"] for row in rated]
    clear = [row for row in rated if row["sentiment"] != 3]
    matches = [(judged(row["output"])[0] > 0.5) == (row["sentiment"] > 3) for row in clear]
    for name, value, published in (
        ("accuracy", sum(matches) / len(matches), 0.94),
        ("similarity", stats.spearmanr(similarity, topic).statistic, 0.79),
        ("perplexity", -stats.spearmanr(perplexity, topic).statistic, 0.81),
    ):
        assert found["table_5"][name] == {"value": pytest.approx(value), "published": published}
    mean = [(2 * row["topic"] + row["sentiment"]) / 3 for row in rated]
    places = range(len(rated))
    pairs = [
        (i, j)
        for i in places
        for j in places
        if rated[i]["item"] == rated[j]["item"] and mean[i] > mean[j]
    ]
    assert found["gm"]["pairs"] == len(pairs)
    fits = {"paper": {"thresholds": GM_THRESHOLDS}, **found["gm"]["fits"]}
    for name, fit in fits.items():
        value = adjusted_gm(*inputs.T, fit["thresholds"])
        gains = np.array([value[i] - value[j] for i, j in pairs])
        assert found["gm"]["agreement"][name]["agreed"] == pytest.approx((gains > 0).mean())
        assert found["gm"]["agreement"][name]["tied"] == pytest.approx((gains == 0).mean())
        if name != "paper":
            assert fit["loss"] == pytest.approx(np.maximum(0, 1 - fit["scale"] * gains).sum())
    t1, t2, t3, t4 = fits["t2"]["thresholds"]
    assert (t1, t3, t4) == (63, 97, -37)
    assert t2 != 71
    assert fits["all"]["loss"] < fits["t2"]["loss"]


decisions = st.sampled_from([0.0, 1.0, float("nan")])
likert = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, float("nan")])


@given(st.lists(st.tuples(decisions, likert), min_size=1, max_size=12))
def test_style_match_equals_counting(rows: list[tuple[float, float]]) -> None:
    judgeable = [row for row in rows if row[0] == row[0] and row[1] in (1, 2, 4, 5)]
    counted = [bool(decision) == (rating in (4, 5)) for decision, rating in judgeable]
    share, judged = style_match(*(np.array(column) for column in zip(*rows, strict=True)))
    assert judged == len(counted)
    assert np.isnan(share) if not counted else share == sum(counted) / len(counted)
