"""One sample scores the same alone and in any company, order, token budget and window.

Rounding remains, since the shape of a product decides the order of its sums. `BOUNDS` states how
much; docs/quickstart.md has what real models take of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from device_cases import DIALOG
from failed_rows import failures_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import save_judges, save_reward_model

from ctrlreward import scorers as cr
from ctrlreward.models.word_vectors import WordVectors
from ctrlreward.recipes.scoring_models.text_cnn import TextCNNClassifier
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, score

pytestmark = pytest.mark.usefixtures("one_thread")

# Largest |in company - alone| / (1 + |alone|) of a score of the tiny models. Their weights are
# larger than those of trained models, and bfloat16 has a relative precision of 0.004.
BOUNDS = {"float32": 5e-6, "bfloat16": 0.03}

BUDGETS = (8, 100, None)
WINDOWS = (1, 90, 2**14)

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
POOL = Samples(
    texts=list(TEXTS),
    prefixes=[text[: len(text) // 3] for text in TEXTS],
    labels=list(TEXTS.values()),
    sources=[
        "The soup was warm.",
        "A cold lake.",
        *["It rained. Nobody spoke."] * (len(TEXTS) - 2),
    ],
    references=[*["We ate warm soup there."] * (len(TEXTS) - 1), "Tea."],
    contexts=["A menu of soups and teas."] * len(TEXTS),
    histories=["Was it any good?\nYes, it was."] * len(TEXTS),
    groups=["ab"[i % 2] for i in range(len(TEXTS))],
)
WORDS = {"negative": ["bad", "awful"], "positive": ["good", "nice"]}
TASK = cr.Task(["<gen_result> It was <mask_token>.", "Just <mask_token>! <gen_result>"], WORDS)
TOPICS = cr.Task(
    ["<gen_result> It was about <mask_token>."],
    {"positive": ["tea"], "negative": ["rain"], "x": ["y"]},
)
RUBRIC = cr.Rubric("Is this {label}? {text}\nAnswer yes or no:", {"yes": 1, "no": 0})
Folders = Mapping[str, str]


def transfer(folders: Folders, **options: Any) -> cr.TransferQuality:
    """The composite of three models."""
    return cr.TransferQuality(
        cr.Accuracy(folders["classifier"], **options),
        cr.Similarity(folders["encoder"], **options),
        cr.Perplexity(folders["llama"], **options),
        thresholds=(0, 0, 1e5, 0),  # wide, so that no sample earns exactly 0
    )


# A family of models for each way in which texts share a batch: prefix trees (Llama), padded rows
# (Mamba), masked texts with merged decoder rows (BART, T5), texts, pairs of texts, words.
POINTWISE: Mapping[str, Callable[..., cr.Scorer]] = {
    "CTRLEval llama": lambda f, **o: cr.CTRLEval(f["llama"], TASK, **o),
    "CTRLEval calibrated": lambda f, **o: cr.CTRLEval(
        f["llama"], TOPICS, ["attribute_relevance"], calibration=["A lake.", LONG], **o
    ),
    "CTRLEval bart": lambda f, **o: cr.CTRLEval(f["bart"], TASK, **o),
    "CTRLEval t5": lambda f, **o: cr.CTRLEval(f["t5"], TASK, **o),
    "Perplexity llama": lambda f, **o: cr.Perplexity(f["llama"], **o),
    "Perplexity gpt2 truncated": lambda f, **o: cr.Perplexity(f["gpt2"], **o),
    "Perplexity mamba": lambda f, **o: cr.Perplexity(f["mamba"], **o),
    "Judge": lambda f, **o: cr.Judge(f["llama"], RUBRIC, **o),
    "BARTScore": lambda f, **o: cr.BARTScore(f["bart"], ["faithfulness", "f_score"], **o),
    "Similarity": lambda f, **o: cr.Similarity(f["encoder"], **o),
    "Alignment embedding": lambda f, **o: cr.Alignment(f["encoder"], DIALOG, **o),
    "Alignment discriminative": lambda f, **o: cr.Alignment(
        f["aligner"], DIALOG, "discriminative", **o
    ),
    "Alignment regression": lambda f, **o: cr.Alignment(f["regression"], DIALOG, "regression", **o),
    "RewardModel": lambda f, **o: cr.RewardModel(f["reward"], **o),
    "RewardModel of an encoder": lambda f, **o: cr.RewardModel(f["regression"], **o),
    "Accuracy": lambda f, **o: cr.Accuracy(f["classifier"], **o),
    "Accuracy of words": lambda f, **o: cr.Accuracy(TextCNNClassifier(f["text_cnn"]), **o),
    "AttributeClassifier": lambda f, **o: cr.AttributeClassifier({"tone": f["classifier"]}, **o),
    "TransferQuality": transfer,
}
ON_SERVERS = {"RemoteRewardModel"}  # whose batches are the server's
# Without a model there is no batch: exactly the same.
EXACT: Mapping[str, Callable[..., cr.Scorer]] = {
    "FunctionScorer": lambda f: cr.FunctionScorer(lambda texts: [*map(len, texts)], pointwise=True),
    "LexiconSentiment": lambda f: cr.LexiconSentiment(),
    "Repetition": lambda f: cr.Repetition(f["gpt2"], n=2),
    "Similarity of word vectors": lambda f: cr.Similarity(f["vectors"]),
}
GROUPED: Mapping[str, Callable[..., cr.Scorer]] = {"Distinct": lambda f: cr.Distinct(f["gpt2"])}


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_llama: Callable[[str], str],
    tiny_causal: Callable[[str], str],
    tiny_bart: str,
    tiny_t5: str,
) -> Folders:
    """Tiny models by kind, with weights large enough for texts to differ clearly."""
    folder = tmp_path_factory.mktemp("invariance")
    words = tuple(sorted({word.lower() for text in TEXTS for word in text.split()}))
    vectors = folder / "vectors"
    draw = np.random.default_rng(0).normal
    WordVectors({word.strip(".,"): draw(size=5) for word in words}).save(vectors)
    return {
        **save_judges(folder, words, initializer_range=0.4),
        "llama": tiny_llama(ascii_letters + " .,!?;:"),
        "reward": save_reward_model(folder / "reward", tiny_causal("gpt2")),
        "gpt2": tiny_causal("gpt2"),
        "mamba": tiny_causal("mamba"),
        "bart": tiny_bart,
        "t5": tiny_t5,
        "vectors": str(vectors),
    }


Built = Callable[..., cr.Scorer]


@pytest.fixture(scope="module")
def built(folders: Folders) -> Built:
    """A function from a case and options to its scorer, built once."""

    @cache
    def build(name: str, **options: Any) -> cr.Scorer:
        return {**POINTWISE, **EXACT, **GROUPED}[name](folders, **options)

    return build


@pytest.fixture(scope="module")
def alone(built: Built) -> Callable[..., Mapping[str, Scores]]:
    """A function from a case and options to the scores of each sample of the pool by itself."""

    @cache
    def scores(name: str, **options: Any) -> Mapping[str, Scores]:
        scorer = built(name, **options)
        rows = [scorer.score(POOL[[i]]) for i in range(len(POOL))]
        return {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}

    return scores


def rounding(found: Scores, expected: Scores) -> float:
    """Largest |found - expected| / (1 + |expected|); infinite if one alone failed."""
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return np.inf
    return float(np.nan_to_num(abs(found - expected) / (1 + abs(expected))).max(initial=0.0))


def scored_together(scorer: cr.Scorer, places: list[int], window: int) -> Mapping[str, Scores]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ctrlreward.models.batching._WINDOW_CHARACTERS", window)
        return scorer.score(POOL[places])


RANGES = {
    (0.0, 1.0): "accuracy label_probability attribute_relevance distinct_1 distinct_2 distinct "
    "repetition",
    (-1.0, 1.0): "similarity polarity",
    (-np.inf, 0.0): "coherence consistency log_likelihood faithfulness",
    (1.0, np.inf): "perplexity",
}
COMPANIES = {
    "places": st.lists(st.integers(0, len(POOL) - 1), min_size=2, max_size=14),
    "window": st.sampled_from(WINDOWS),
}


def test_every_scorer_has_a_case(built: Built) -> None:
    scorers = {
        name
        for name in cr.__all__
        if inspect.isclass(found := getattr(cr, name))
        and issubclass(found, cr.Scorer)
        and not inspect.isabstract(found)
    }
    by_case = {name: built(name) for name in [*POINTWISE, *EXACT, *GROUPED]}
    assert scorers - ON_SERVERS == {type(scorer).__name__ for scorer in by_case.values()}
    assert {name for name, scorer in by_case.items() if not scorer.pointwise} == {*GROUPED}


@pytest.mark.parametrize("name", [*POINTWISE, *EXACT, *GROUPED])
def test_every_scorer_declares_its_scores_and_names_what_is_empty(name: str, built: Built) -> None:
    scorer = built(name)
    none = scorer.score(POOL[:0])
    assert {key: values.shape for key, values in none.items()} == dict.fromkeys(scorer.specs, (0,))
    scores = scorer.score(POOL)
    assert list(scores) == list(scorer.specs)
    for key, values in scores.items():
        spec, valid = scorer.specs[key], values[~np.isnan(values)]
        assert valid.size > 0
        assert ((spec.range[0] <= valid) & (valid <= spec.range[1])).all()
        if not name.startswith("Alignment"):  # whose ranges are those of its model
            assert all(key not in keys.split() for r, keys in RANGES.items() if r != spec.range)
    if name != "FunctionScorer":
        empty = POOL.texts.index("")
        assert all(np.isnan(values[empty]) for values in scores.values())
        assert empty in failures_of(scorer, POOL)


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
    @given(budget=st.sampled_from(BUDGETS), **COMPANIES)
    def in_company(places: list[int], window: int, budget: int | None) -> None:
        scorer = built(name, dtype=dtype, batch_tokens=budget)
        scores = scored_together(scorer, places, window)
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
        scores = scored_together(built(name), places, window)
        for key, values in alone(name).items():
            np.testing.assert_array_equal(scores[key], values[places])

    in_company()


@pytest.mark.parametrize("dtype", BOUNDS)
def test_scorers_that_share_a_model_do_not_change_each_other(
    dtype: str, folders: Folders, built: Built, alone: Callable[..., Mapping[str, Scores]]
) -> None:
    names = ["CTRLEval llama", "CTRLEval calibrated", "Perplexity llama"]

    @settings(max_examples=8)
    @given(chosen=st.sets(st.sampled_from(names), min_size=2), **COMPANIES)
    def merged(chosen: set[str], places: list[int], window: int) -> None:
        scorers = {name: built(name, dtype=dtype, batch_tokens=None) for name in sorted(chosen)}
        components = {f"{n}/{key}": s[key] for n, s in scorers.items() for key in s.specs}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ctrlreward.models.batching._WINDOW_CHARACTERS", window)
            together = score(components, POOL[places]).scores
        for name, values in together.items():
            case, _, key = name.partition("/")
            assert rounding(values, alone(case, dtype=dtype)[key][places]) <= BOUNDS[dtype], name

    merged()


@pytest.mark.parametrize("name", GROUPED)
@given(order=st.permutations(range(len(POOL))))
@settings(max_examples=20)
def test_scores_of_a_group_depend_on_their_group_only(
    name: str, order: list[int], built: Built
) -> None:
    scorer = built(name)
    groups = POOL.require("groups", name)
    together = scorer.score(POOL[order])
    for group in {*groups}:
        members = [i for i in order if groups[i] == group]
        places = [place for place, i in enumerate(order) if groups[i] == group]
        for key, values in scorer.score(POOL[members]).items():
            np.testing.assert_array_equal(together[key][places], values)
        # Not pointwise: a member by itself has another score than with its group.
        first = scorer.score(POOL[members[:1]])["distinct_1"]
        if not np.isnan(first).any():
            assert first != together["distinct_1"][places[0]]
