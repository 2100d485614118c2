from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from asked_models import FOOD, blank
from failed_rows import failures_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from plain_models import PlainCausal, PlainSeq2Seq

from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import (
    CTRLEval,
    relevance_blanks,
)
from ctrlreward.scorers.task import Evaluator, Task

ASPECTS = ("coherence", "consistency", "attribute_relevance")

# Properties of any model, tested with the tiny PEGASUS; tests/golden/ has the published scores.


@pytest.fixture(scope="module")
def scorer(pegasus: str) -> CTRLEval:
    return CTRLEval(pegasus)


@pytest.fixture(scope="module")
def scores(scorer: CTRLEval) -> dict[str, Scores]:
    return scorer.score(FOOD)


def like(scorer: CTRLEval, **options: Any) -> CTRLEval:
    """A scorer with other options and the same model."""
    other = CTRLEval(scorer.model, **options)
    other.iwf = scorer.iwf
    return other


# Patterns


@given(
    st.text(st.sampled_from("a ."), max_size=3), st.permutations(["<gen_result>", "<mask_token>"])
)
def test_a_text_may_contain_slot_names(around: str, slots: list[str]) -> None:
    text = around + "".join(slots) + around
    for prompt in ("<gen_result> It was <mask_token>.", "It was <mask_token>. <gen_result>"):
        (each,) = relevance_blanks([Evaluator(prompt, ("good",))])
        sides = {"".join(side) for side in each.about(text)[:2]}
        assert sides in ({f"{text} It was ", "."}, {"It was ", f". {text}"})


# Evaluators and weights


def test_the_evaluators_are_a_classifier(scorer: CTRLEval, scores: dict[str, Scores]) -> None:
    values = scorer.probabilities([*FOOD.texts, ""])
    assert scorer.labels == ("negative", "positive")
    assert_allclose(values[:3].sum(axis=1), 1)
    assert_allclose(values[[0, 1, 2], [1, 1, 0]], scores["attribute_relevance"], atol=1e-5)
    assert np.isnan(values[3]).all()
    assert scorer.probabilities([]).shape == (0, 2)


def test_weights_come_from_a_table_or_an_object_or_wordfreq(pegasus: str) -> None:
    table = Path(pegasus) / "iwf.txt"
    given = [str(table), InverseFrequency.from_file(table), None]
    first, second, default = (CTRLEval(pegasus, iwf=iwf).iwf.weights for iwf in given)
    assert_array_equal(first, second)
    assert_array_equal(default, InverseFrequency.from_wordfreq(load_tokenizer(pegasus)).weights)
    with pytest.raises(ValueError, match="iwf"):
        CTRLEval(pegasus, iwf=InverseFrequency(np.ones(7))).score(FOOD)
    for weights in ("mean", "beta"):  # the plain mean needs no table
        one = CTRLEval(pegasus, aspects="coherence", iwf="no/such/table.txt", weights=weights)
        if weights == "mean":
            assert np.isfinite(one.score(FOOD)["coherence"]).all()
        else:
            with pytest.raises(OSError, match="table"):
                one.score(FOOD)


def test_the_plain_mean_folds_the_scores_of_single_evaluators(scorer: CTRLEval) -> None:
    """A task of one evaluator has its score, a single sentence its own log-probability."""
    prompts = ["<gen_result> It was <mask_token>.", "Just <mask_token>! <gen_result>"]
    words = {"negative": ["bad", "very poor"], "positive": ["good", "very nice"]}

    def relevance(task: Task, **options: Any) -> Scores:
        one = like(scorer, task=task, aspects="attribute_relevance", **options)
        return one.score(FOOD)["attribute_relevance"]

    single = [
        relevance(Task([prompt], {label: [row[i]] for label, row in words.items()}))
        for prompt in prompts
        for i in (0, 1)
    ]
    task = Task(prompts, words)
    assert_allclose(relevance(task, weights="mean"), np.mean(single, axis=0), atol=1e-5)
    chosen = [task.evaluators.index(each) for each in task.subset(3, seed=0)]
    some = relevance(task, weights="mean", evaluators=3)
    assert_allclose(some, np.mean([single[i] for i in chosen], axis=0), atol=1e-5)
    plain = like(scorer, weights="mean").score(FOOD)
    for i, aspects in enumerate(scorer.explain(FOOD)):
        for aspect in ("coherence", "consistency"):
            mean = np.mean([e.score for e in aspects[aspect].evaluators])
            assert plain[aspect][i] == pytest.approx(mean, abs=1e-5)


# Verbalizers of several tokens

PHRASES = Task(
    ["<gen_result> It was <mask_token>."],
    {"negative": ["bad", "not very good"], "positive": ["good", "very good"]},
)


def share_of_sums(log_probs: list[list[float]]) -> Scores:
    """β-weighted label probabilities: each label's sum over the sum of all."""
    sums = np.exp(np.array(log_probs)).sum(axis=1)
    return np.asarray(sums / sums.sum())


def mean_share(log_probs: list[list[float]]) -> Scores:
    """Each label's share of an evaluator's words, averaged over evaluators."""
    evaluators = np.exp(np.array(log_probs)).T
    return np.asarray((evaluators / evaluators.sum(axis=1, keepdims=True)).mean(axis=0))


def test_phrases_as_continued_by_a_decoder(tiny_llama: Callable[[str], str]) -> None:
    """Phrases are scored to the end of the prompt, without β by default."""
    folder = tiny_llama(ascii_letters + " .!,:\n")
    plain = PlainCausal(folder)

    def likelihood(phrase: str) -> float:
        context = f"{FOOD.texts[0]} It was"
        ids = plain.tokenizer(f"{context} {phrase}.").input_ids  # a token a character
        return float(plain.log_probs([0, *ids], 1 + len(context)).mean())

    expected = [[likelihood(w) for w in words] for words in PHRASES.verbalizers.values()]
    for weights, fold in ((None, mean_share), ("beta", share_of_sums)):
        result = CTRLEval(folder, PHRASES, weights=weights).probabilities(FOOD.texts[:1])[0]  # type: ignore[arg-type]
        assert_allclose(result, fold(expected), atol=1e-5)


# Explanations


@pytest.mark.parametrize("weights", ["beta", "mean"])
def test_the_weighted_mean_of_an_explanation_is_the_score(scorer: CTRLEval, weights: str) -> None:
    same = like(scorer, weights=weights, evaluators=6)
    result = same.score(FOOD)
    explained = same.explain(FOOD)
    assert [list(parts) for parts in explained] == [list(ASPECTS)] * 3
    for i, parts in enumerate(explained):
        for aspect, part in parts.items():
            assert part.aspect == aspect
            assert part.score == pytest.approx(result[aspect][i], rel=1e-5)
            assert sum(e.weight for e in part.evaluators) == pytest.approx(1)
            mean = sum(e.score * e.weight for e in part.evaluators)
            assert mean == pytest.approx(part.score, rel=1e-12)


def test_an_explanation_names_the_patterns(scorer: CTRLEval) -> None:
    task = Task(["<gen_result> So <mask_token>!"], {"negative": ["bad"], "positive": ["good"]})
    first, second, third = "The food was good.", "We will come back.", "Soon."
    samples = Samples([f"{first} {second} {third}"], prefixes=["The food"], labels=["positive"])
    (parts,) = like(scorer, task=task).explain(samples)
    patterns = {
        aspect: [(e.left, e.target, e.right, e.candidates) for e in part.evaluators]
        for aspect, part in parts.items()
    }
    remainder = f" was good. {second} {third}"
    assert patterns == {
        "coherence": [
            (" ", first, f" {second} {third}", (first,)),
            (f"{first} ", second, f" {third}", (second,)),
            (f"{first} {second} ", third, " ", (third,)),
        ],
        "consistency": [
            ("The food ", remainder, "", (remainder,)),
            ("", "The food", f" {remainder}", ("The food",)),
        ],
        "attribute_relevance": [("<gen_result> So ", "good", "!", ("bad", "good"))],
    }


def test_a_text_without_a_score_is_explained_by_nothing(scorer: CTRLEval) -> None:
    explained = scorer.explain(Samples(["", "A dog."], prefixes=["", "A"], labels=["negative"] * 2))
    for part in explained[0].values():
        assert np.isnan(part.score)
        assert part.evaluators == ()
    counts = {aspect: len(part.evaluators) for aspect, part in explained[1].items()}
    assert counts == {"coherence": 1, "consistency": 2, "attribute_relevance": 72}


def test_a_real_model_tells_praise_from_blame() -> None:
    praise = [
        "The food was delicious, and the staff made us feel at home. I loved every minute.",
        "What a wonderful film, I laughed and cried and want to see it again.",
    ]
    blame = [
        "The food was cold and bland, and the waiter shouted at us. I hated every minute.",
        "What a dull film, I yawned for two hours and want my money back.",
    ]
    scorer = CTRLEval("smollm2-135m", aspects=["attribute_relevance"], evaluators=4)
    values = scorer.score(praise + blame, labels="positive")["attribute_relevance"]
    assert (values[:2] > values[2:] + 0.2).all()


# Bad input


@pytest.mark.parametrize(
    ("text", "prefix", "nan"),
    [
        (" \n", " ", ASPECTS),
        ("The food", "The food", ["consistency"]),
        ("The food. ", "The food.", ["consistency"]),
        ("The food", "", ["consistency"]),
    ],
)
def test_what_has_no_score_is_nan_and_named(
    text: str, prefix: str, nan: list[str], scorer: CTRLEval, scores: dict[str, Scores]
) -> None:
    bad = Samples([text], prefixes=[prefix], labels=["negative"])
    samples = Samples.concat([FOOD[:1], bad, FOOD[1:]])
    result = scorer.score(samples)
    assert failures_of(scorer, samples).keys() == {1}
    for aspect, values in result.items():
        assert np.isnan(values).tolist() == [False, aspect in nan, False, False]
        assert_allclose(values[[0, 2, 3]], scores[aspect], atol=1e-5)


def test_a_text_that_the_splitter_leaves_nothing_of_is_nan_and_named(scorer: CTRLEval) -> None:
    other = CTRLEval(scorer.model, aspects=["coherence"], sentence_splitter=lambda text: ["", " "])
    assert np.isnan(other.score(Samples(["The food"]))["coherence"]).all()
    assert failures_of(other, Samples(["The food"])).keys() == {0}


def test_only_the_first_max_tokens_are_read(
    tiny_llama: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_llama(ascii_letters + " .")  # a token per character
    text = "The food was good. We ate. It was late. "
    columns = {"prefixes": "", "labels": "positive"}
    cut = CTRLEval(model, max_tokens=26).score(["A.", text * 9], **columns)
    assert "360" in caplog.messages[0]
    whole = CTRLEval(model, max_tokens=None).score(["A.", text[:26]], **columns)
    for aspect, values in whole.items():
        assert_array_equal(values, cut[aspect])
    short = CTRLEval(model, "topic", "consistency", max_tokens=5)
    assert np.isnan(short.score([text], prefixes="The food")["consistency"]).all()


WRONG: list[dict[str, Any]] = [
    {"aspects": []},
    {"evaluators": 73},
    {"max_tokens": 0},
    {"calibration": ["It is late.", " "]},
]


@pytest.mark.parametrize("options", WRONG)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        CTRLEval(**options)


# White space between prefix and remainder

FAMILIES = ["llama", "gpt2", "pegasus", "t5", "bart"]


def plain_consistency(family: str, folder: str, remainder: str) -> float:
    """Mean of the remainder after "The food" and of the prefix, one plain pass each."""
    if family in ("pegasus", "t5", "bart"):
        twin = PlainSeq2Seq(family, folder)
        asked = [
            (blank("The food ", "", (remainder,), joined=True), remainder),
            (blank("", f" {remainder}", ("The food",)), "The food"),
        ]
        rows = [twin.log_probs(*twin.passes(*each)) for each in asked]
    else:
        causal, rows = PlainCausal(folder), []
        for context, target in (("The food", remainder), (f"{remainder.strip()}\n\n", "The food")):
            ids, read = causal.tokens(context, target)
            rows.append(causal.log_probs([0, *ids], read + 1))
    return float(np.mean([row.mean() for row in rows]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("space", [" ", "  ", "\t", " \n", "\n\n"])
def test_white_space_after_the_prefix_belongs_to_the_remainder(
    family: str, space: str, tiny_causal: Callable[..., str], seq2seq_folders: dict[str, str]
) -> None:
    folder = seq2seq_folders.get(family) or tiny_causal(family)
    scorer = CTRLEval(folder, aspects="consistency", weights="mean", calibration=False)
    text = f"The food{space}was good."
    prefixes = ["The food" + space[:n] for n in range(len(space) + 1)]
    found = scorer.score([text] * len(prefixes), prefixes=prefixes)["consistency"]
    assert_array_equal(found, found[0])
    expected = plain_consistency(family, folder, f"{space}was good.")
    if space == " " or family in ("llama", "gpt2", "bart"):  # others read any as a space
        assert_allclose(found, expected, atol=1e-5)
    alone = scorer.score([text, text, text + space], prefixes=[text, "", text])["consistency"]
    assert np.isnan(alone).all()
