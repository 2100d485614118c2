"""The studies of defaults: ρ and its intervals, made texts, variants that are the scorers' own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ctrlreward import Alignment, CTRLEval, Samples
from ctrlreward.recipes.papers import defaults
from ctrlreward.recipes.papers.defaults import Judged

DIALOG = Samples(
    ["i have two dogs and a cat", "no idea what you mean", "dogs bark at night in my street"],
    contexts=["I have two dogs."] * 3,
    histories=["do you have pets?"] * 3,
)


def test_differences_are_of_scipys_rho() -> None:
    rng = np.random.default_rng(1)
    ratings = rng.integers(0, 4, 40).astype(float)
    variants = {"paper": ratings + rng.normal(0, 3, 40), "ours": ratings + rng.normal(0, 0.5, 40)}
    judged = Judged(Samples(["a"] * 40), ratings, [i // 2 for i in range(40)])
    first, second = defaults.compare(judged, variants)
    rho = {name: stats.spearmanr(values, ratings).statistic for name, values in variants.items()}
    assert first == ["paper", f"{rho['paper']:.4f}", ""]
    assert second[:2] == ["ours", f"{rho['ours']:.4f}"]
    value, low, high = (float(part.strip("()")) for part in second[2].replace("to ", "").split())
    assert value == pytest.approx(rho["ours"] - rho["paper"], abs=1e-4)
    assert 0 < low < value < high < 1


def test_the_default_of_groundedness_is_one_of_the_variants() -> None:
    variants = defaults.dialog_variants(DIALOG, "groundedness")
    scores = Alignment(aspects="groundedness").score(DIALOG)["groundedness"]
    np.testing.assert_allclose(variants["above chance"], scores, atol=1e-5)
    published = Alignment(aspects="groundedness", calibration=False).score(DIALOG)
    np.testing.assert_allclose(variants["sum"], published["groundedness"], atol=1e-5)


def test_the_defaults_of_consistency_are_among_the_variants() -> None:
    texts = ["The soup was cold and bitter.", "The soup was sold at a football match."]
    samples = Samples(texts, prefixes=["The soup", "The soup was sold"])
    variants = defaults.continuation_variants(samples)
    for name, calibration in (
        ("as published", False),
        ("half of both (the default)", None),
    ):
        scorer = CTRLEval(aspects="consistency", calibration=calibration)
        np.testing.assert_allclose(variants[name], scorer.score(samples)["consistency"], atol=1e-4)


def test_corrupted_sentences_differ_from_their_own_and_share_the_source(data_dir: Path) -> None:
    judged = defaults.corrupted(limit=20)
    assert judged.ratings.tolist() == [1.0, 0.0] * 20
    assert len(set(judged.clusters)) == 20
    texts, sources = judged.samples.texts, judged.samples.sources or ()
    for own, wrong, source, again in zip(
        texts[::2], texts[1::2], sources[::2], sources[1::2], strict=True
    ):
        assert own != wrong
        assert source == again
        assert own not in source
    words = [
        {*own.split()} ^ {*wrong.split()}
        for own, wrong in zip(texts[::2], texts[1::2], strict=True)
    ]
    changes = [len(changed) for changed in words]
    assert np.median(changes) <= 2  # one word for another
    assert sum(change > 8 for change in changes) >= 4  # another sentence


def test_continuations_share_the_prefix_and_differ_after_it(data_dir: Path) -> None:
    samples, ratings, clusters = defaults.continued(limit=10)
    prefixes = samples.prefixes or ()
    assert ratings.tolist() == [1.0, 0.0] * 10
    assert prefixes[::2] == prefixes[1::2] == tuple(clusters[::2])
    own, other = tuple(samples.completions[::2]), tuple(samples.completions[1::2])
    assert own == (*other[1:], other[0])  # each is once right and once wrong
