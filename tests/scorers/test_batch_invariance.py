"""One sample scores the same alone and in any company, order, token budget and window.

Rounding remains, since the shape of a product decides the order of its sums. `BOUNDS` states how
much; docs/quickstart.md has what real models take of it.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from device_cases import EXACT, GROUPED, POINTWISE, SCORERS, samples_of
from failed_rows import failures_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlreward import scorers as cr
from ctrlreward.models import batching
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, score

pytestmark = pytest.mark.usefixtures("one_thread")

# Largest |in company - alone| / (1 + |alone|) of a score of the tiny models. Their weights are
# larger than those of trained models, and bfloat16 has a relative precision of 0.004.
BOUNDS = {"float32": 5e-6, "bfloat16": 0.03}

LONG = "The tea was weak, the bread was old, and nobody said a word about the rain. " * 3
TEXTS = {
    "The soup was warm. We ate it all.": "positive",
    "The soup was warm. We left it.": "negative",
    "The soup was warm": "positive",
    "No.": "negative",
    "": "positive",
    LONG: "negative",
    "Café crème, twice!": "positive",
    "The soup was warm. We ate it all. ": "negative",
    "not valid: \ud800": "positive",
    "It was dull and slow. Great staff; bad tea? All of it was grey.": "positive",
}
N = len(TEXTS)
POOL = Samples(
    texts=list(TEXTS),
    prefixes=[text[: len(text) // 3] for text in TEXTS],
    labels=list(TEXTS.values()),
    sources=["The soup was warm.", "A cold lake.", *["It rained. Nobody spoke."] * (N - 2)],
    references=[*["We ate warm soup there."] * (N - 1), "Tea."],
    contexts=["A menu of soups and teas."] * N,
    histories=["Was it any good?\nYes, it was."] * N,
    groups=["ab"[i % 2] for i in range(N)],
)
ON_SERVERS = {"RemoteRewardModel"}  # whose batches are the server's
COMPANIES = {
    "places": st.lists(st.integers(0, N - 1), min_size=2, max_size=14),
    "window": st.sampled_from([1, 90, 2**14]),
}
Built = Callable[..., cr.Scorer]


def pool_of(name: str) -> Samples:
    return samples_of(name, POOL)


@pytest.fixture(scope="module")
def alone(built: Built) -> Callable[..., Mapping[str, Scores]]:
    """A function from a case and options to the scores of each sample of the pool by itself."""

    @cache
    def scores(name: str, **options: Any) -> Mapping[str, Scores]:
        rows = [built(name, **options).score(pool_of(name)[[i]]) for i in range(N)]
        return {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}

    return scores


def rounding(found: Scores, expected: Scores) -> float:
    """Largest |found - expected| / (1 + |expected|); infinite if one alone failed."""
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return np.inf
    return float(np.nan_to_num(abs(found - expected) / (1 + abs(expected))).max(initial=0.0))


def scored_together(
    components: Mapping[str, cr.Component], samples: Samples, window: int
) -> Mapping[str, Scores]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "WINDOW_CHARACTERS", window)
        return score(components, samples).scores


def components_of(scorer: cr.Scorer) -> dict[str, cr.Component]:
    return {key: scorer[key] for key in scorer.specs}


def test_every_scorer_has_a_case(built: Built) -> None:
    kinds = [kind for name in cr.__all__ if inspect.isclass(kind := getattr(cr, name))]
    scorers = {k.__name__ for k in kinds if issubclass(k, cr.Scorer) and not inspect.isabstract(k)}
    by_case = {name: built(name) for name in SCORERS}
    assert scorers - ON_SERVERS == {type(scorer).__name__ for scorer in by_case.values()}
    assert {name for name, scorer in by_case.items() if not scorer.pointwise} == {*GROUPED}


# Range and better direction of each score.
DECLARED = {
    ((0.0, 1.0), "max"): "accuracy label_probability attribute_relevance distinct_1 distinct",
    ((0.0, 1.0), "min"): "repetition",
    ((-1.0, 1.0), "max"): "similarity polarity",
    ((-np.inf, 0.0), "max"): "coherence consistency log_likelihood faithfulness",
    ((1.0, np.inf), "min"): "perplexity",
}


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_declares_its_scores_and_names_what_is_empty(name: str, built: Built) -> None:
    scorer, pool = built(name), pool_of(name)
    none = scorer.score(pool[:0])
    assert {key: values.shape for key, values in none.items()} == dict.fromkeys(scorer.specs, (0,))
    scores = scorer.score(pool)
    assert list(scores) == list(scorer.specs)
    for key, values in scores.items():
        spec, valid = scorer.specs[key], values[~np.isnan(values)]
        assert valid.size > 0
        assert ((spec.range[0] <= valid) & (valid <= spec.range[1])).all()
        if not name.startswith("Alignment"):  # whose ranges are those of its model
            others = (keys for kind, keys in DECLARED.items() if kind != (spec.range, spec.mode))
            assert all(key not in keys.split() for keys in others)
    copy = pickle.loads(pickle.dumps(scorer)).score(pool)  # in another process
    for key, values in scores.items():
        assert rounding(copy[key], values) <= BOUNDS["float32"]
    if name != "FunctionScorer":
        empty = POOL.texts.index("")
        assert all(np.isnan(values[empty]) for values in scores.values())
        assert empty in failures_of(scorer, pool)


# In bfloat16 one of each family; `make soak` has the rest.
IN_BFLOAT16 = {"CTRLEval llama", "CTRLEval bart", "Perplexity mamba", "Judge", "Similarity"}
PRECISIONS = [
    pytest.param(
        *(name, dtype),
        marks=pytest.mark.soak if dtype == "bfloat16" and name not in IN_BFLOAT16 else [],
    )
    for name in POINTWISE
    for dtype in BOUNDS
]


@pytest.mark.parametrize(("name", "dtype"), PRECISIONS)
def test_scores_of_a_sample_are_its_own(
    name: str, dtype: str, built: Built, alone: Callable[..., Mapping[str, Scores]]
) -> None:
    expected = alone(name, dtype=dtype)
    # Samples differ in each score, else no company could change it.
    assert all(np.unique(values[~np.isnan(values)]).size > 1 for values in expected.values())

    @settings(max_examples=5)
    @given(budget=st.sampled_from([8, 100, None]), **COMPANIES)
    def in_company(places: list[int], window: int, budget: int | None) -> None:
        scorer = built(name, dtype=dtype, batch_tokens=budget)
        scores = scored_together(components_of(scorer), pool_of(name)[places], window)
        for key, values in expected.items():
            assert rounding(scores[key], values[places]) <= BOUNDS[dtype], key

    in_company()


@pytest.mark.parametrize("name", EXACT)
def test_without_a_model_scores_are_exactly_the_same(
    name: str, built: Built, alone: Callable[..., Mapping[str, Scores]]
) -> None:
    @settings(max_examples=20)
    @given(**COMPANIES)
    def in_company(places: list[int], window: int) -> None:
        scores = scored_together(components_of(built(name)), POOL[places], window)
        for key, values in alone(name).items():
            np.testing.assert_array_equal(scores[key], values[places])

    in_company()


@pytest.mark.parametrize("dtype", BOUNDS)
def test_scorers_that_share_a_model_do_not_change_each_other(
    dtype: str, built: Built, alone: Callable[..., Mapping[str, Scores]]
) -> None:
    names = ["CTRLEval llama", "CTRLEval calibrated", "Perplexity llama"]

    @settings(max_examples=8)
    @given(chosen=st.sets(st.sampled_from(names), min_size=2), **COMPANIES)
    def merged(chosen: set[str], places: list[int], window: int) -> None:
        scorers = {name: built(name, dtype=dtype, batch_tokens=None) for name in sorted(chosen)}
        components = {f"{n}/{key}": s[key] for n, s in scorers.items() for key in s.specs}
        for name, values in scored_together(components, POOL[places], window).items():
            case, _, key = name.partition("/")
            assert rounding(values, alone(case, dtype=dtype)[key][places]) <= BOUNDS[dtype], name

    merged()


@pytest.mark.parametrize("name", GROUPED)
@given(order=st.permutations(range(N)))
@settings(max_examples=20)
def test_scores_of_a_group_depend_on_their_group_only(
    name: str, order: list[int], built: Built
) -> None:
    scorer, groups = built(name), POOL.groups or ()
    together = scorer.score(POOL[order])
    for group in {*groups}:
        places = [place for place, i in enumerate(order) if groups[i] == group]
        members = [order[place] for place in places]
        for key, values in scorer.score(POOL[members]).items():
            np.testing.assert_array_equal(together[key][places], values)
        # Not pointwise: a member by itself has another score than with its group.
        first = scorer.score(POOL[members[:1]])["distinct_1"]
        if not np.isnan(first).any():
            assert first != together["distinct_1"][places[0]]
