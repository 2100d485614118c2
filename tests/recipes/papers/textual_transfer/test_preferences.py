from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scoring_recipes import random_judge

from ctrlreward import Accuracy, Perplexity, Samples, Similarity, WordVectors
from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.papers.textual_transfer.preferences import (
    agreement,
    fit_gm,
    main,
    pairwise_preferences,
)
from ctrlreward.recipes.scoring_models.text_cnn import TextCNNClassifier

PLANTED = (20.0, 30.0, 300.0, -10.0)

Pairs = tuple[np.ndarray, np.ndarray]


def outputs(n: int, seed: int) -> np.ndarray:
    """Draw accuracy, similarity and perplexity of outputs; most have GM 0 by default."""
    random = np.random.default_rng(seed)
    perplexity = np.exp(random.normal(4, 1, n)).clip(1)
    return np.column_stack([random.uniform(size=(n, 2)), perplexity])


def total_loss(pairs: Pairs, thresholds: tuple[float, float, float, float], scale: float) -> float:
    """Sum the hinge losses in plain Python; a scale of 1 is the paper's loss."""
    t1, t2, t3, t4 = thresholds

    def gm(row: np.ndarray) -> float:
        acc, sim, pp = row
        product = max(100 * acc - t1, 0) * max(100 * sim - t2, 0) * max(min(t3 - pp, pp - t4), 0)
        return float(product ** (1 / 3))

    return sum(max(0.0, scale * (gm(b) - gm(a)) + 1) for a, b in zip(*pairs, strict=True))


# Fitting


def test_no_other_thresholds_and_scale_are_better() -> None:
    """Of noisy preferences by planted thresholds, eight outputs per item."""
    scores = outputs(160, seed=1)
    noise = 8 * np.random.default_rng([1, 1]).normal(size=160)  # independent of the scores
    ratings = adjusted_gm(*scores.T, PLANTED) + noise
    preferred, rejected = pairwise_preferences(ratings, [i // 8 for i in range(160)])
    pairs = scores[preferred], scores[rejected]
    fit = fit_gm(*pairs)
    assert fit.loss == pytest.approx(total_loss(pairs, fit.thresholds, fit.scale))
    assert agreement(*pairs, fit.thresholds)[0] > agreement(*pairs)[0]
    grid = itertools.product((0, 20, 40), (0, 20, 40), (100, 300), (-100, -10))
    for point in [GM_THRESHOLDS, PLANTED, *grid]:
        for factor in (0.0, 0.5, 1.0, 2.0):
            assert fit.loss <= total_loss(pairs, point, factor * fit.scale)


def test_the_default_is_kept_if_nothing_can_be_learned() -> None:
    same = outputs(5, seed=6)
    fit = fit_gm(same, same)  # all gains are 0, so every t costs 1 per pair
    assert fit.thresholds == GM_THRESHOLDS
    assert (fit.scale, fit.loss) == (0, 5)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 5, math.nan]), st.sampled_from("abc")), max_size=10
    ),
)
def test_pairs_equal_brute_force(rated: list[tuple[int, str]]) -> None:
    expected = {
        (i, j)
        for i, (high, one) in enumerate(rated)
        for j, (low, other) in enumerate(rated)
        if one == other and high > low
    }
    preferred, rejected = pairwise_preferences([r for r, _ in rated], [c for _, c in rated])
    assert len(preferred) == len(rejected) == len(expected)
    assert set(zip(preferred.tolist(), rejected.tolist(), strict=True)) == expected


# Table 5 and the fit on a rated file, by tiny judges

WORDS = "the a soup room bus was is warm cold clean late very so not".split()


@pytest.fixture
def rated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Write 24 items by four systems, rated at random, and folders of the judges."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    random_judge(tmp_path / "judge", {"negative": WORDS[:9], "positive": WORDS[9:]})
    WordVectors({w: random.uniform(1, 4, size=3).tolist() for w in WORDS}).save("vectors")
    table = []
    sources = [" ".join(random.choice(WORDS, size=5)) for _ in range(24)]
    for i in range(96):
        row = {"item": i // 4, "target": "positive", "system": "abcd"[i % 4]}
        row |= {"source": sources[i // 4], "output": " ".join(random.choice(WORDS, size=5))}
        row["grammaticality"] = random.uniform(1, 5)
        table.append({**row, "sentiment": 1 + i % 5, "topic": random.uniform(1, 5)})
    with open("rated.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return table


def test_table_5_and_fits_equal_plain_computations(
    rated: list[dict[str, Any]], letters: str
) -> None:
    classifier = f"{TextCNNClassifier.__module__}.TextCNNClassifier:judge"
    given = [f"--classifier={classifier}", f"--model={letters}", "--similarity=vectors"]
    main(["ratings", "rated.csv", *given, "--score-end", "--json=found.json"])
    found = json.loads(Path("found.json").read_text())
    texts, sources = ([row[name] for row in rated] for name in ("output", "source"))
    samples = Samples(texts, sources=sources, labels=["positive"] * len(rated))
    likely = Accuracy(TextCNNClassifier("judge")).score(samples)["label_probability"]
    similarity = Similarity("vectors").score(samples)["similarity"]
    perplexity = Perplexity(letters, score_end=True).score(samples)["perplexity"]
    inputs = np.stack([likely, similarity, perplexity], axis=1)
    ratings = {n: [row[n] for row in rated] for n in ("grammaticality", "sentiment", "topic")}
    styles = np.array(ratings["sentiment"])
    clear = ((likely > 0.5) == (styles > 3))[styles != 3]
    fluent = -stats.spearmanr(perplexity, ratings["grammaticality"]).statistic
    for name, value, published in (
        ("accuracy", np.mean(clear), 0.94),
        ("similarity", stats.spearmanr(similarity, ratings["topic"]).statistic, 0.79),
        ("perplexity", fluent, 0.81),
    ):
        assert found["table_5"][name] == {"value": pytest.approx(value), "published": published}
    mean = np.mean([*ratings.values()], axis=0)
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
    t1, _, t3, t4 = fits["t2"]["thresholds"]
    assert (t1, t3, t4) == (63, 97, -37)
    assert fits["all"]["loss"] <= fits["t2"]["loss"]
