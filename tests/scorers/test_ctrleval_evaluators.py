"""The pattern evaluators behind a score of CTRLEval: weights, subsets, phrases, explanations."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from asked_models import FOOD, Favouring, blank
from plain_models import PlainCausal, PlainSeq2Seq

from ctrlreward.samples import Samples
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.task import Task

ASPECTS = ("coherence", "consistency", "attribute_relevance")


@pytest.fixture(scope="module")
def scorer(pegasus: str) -> CTRLEval:
    return CTRLEval(pegasus)


def like(scorer: CTRLEval, **options: Any) -> CTRLEval:
    """A scorer with other options and the same model."""
    other = CTRLEval(scorer.model, **options)
    other.iwf = scorer.iwf
    return other


def test_the_plain_mean_folds_the_scores_of_single_evaluators(scorer: CTRLEval) -> None:
    """A task of one evaluator has its score, a single sentence its own log-probability."""
    prompts = ["<gen_result> It was <mask_token>.", "Just <mask_token>! <gen_result>"]
    words = {"negative": ["bad", "very poor"], "positive": ["good", "very nice"]}
    aspects = ["attribute_relevance"]
    single = [
        like(
            scorer,
            task=Task([prompt], {label: [row[i]] for label, row in words.items()}),
            aspects=aspects,
        ).score(FOOD)["attribute_relevance"]
        for prompt in prompts
        for i in (0, 1)
    ]
    folded = like(scorer, task=Task(prompts, words), aspects=aspects, weights="mean")
    expected = np.mean(single, axis=0)
    np.testing.assert_allclose(folded.score(FOOD)["attribute_relevance"], expected, atol=1e-5)


def test_the_plain_mean_folds_the_log_probabilities_of_patterns(scorer: CTRLEval) -> None:
    for aspect in ("coherence", "consistency"):
        explained = [parts[aspect] for parts in like(scorer, aspects=[aspect]).explain(FOOD)]
        expected = [np.mean([e.score for e in parts.evaluators]) for parts in explained]
        result = like(scorer, aspects=[aspect], weights="mean").score(FOOD)[aspect]
        np.testing.assert_allclose(result, expected, atol=1e-5)


def test_a_subset_scores_its_own_evaluators_only(scorer: CTRLEval) -> None:
    part = like(scorer, aspects=["attribute_relevance"], evaluators=7)
    part.loaded_model = recorder = Favouring(scorer.loaded_model)
    part.score(FOOD)
    for text, task in zip(FOOD.texts, *recorder.calls, strict=True):
        assert task.text == text
        received = [each.about(text) for each in task.blanks]
        pairs = [
            ("".join(each.left), "".join(each.right), word)
            for each in received
            for word in each.targets
        ]
        expected = []
        for prompt, words in part.task.subset(7, seed=0):
            left, right = prompt.split("<mask_token>")
            filled = (left.replace("<gen_result>", text), right.replace("<gen_result>", text))
            expected += [(*filled, word) for word in words]
        assert pairs == expected
        assert len({(each.left, each.right) for each in received}) == len(received)


def test_a_subset_leaves_the_other_aspects_as_they_are(scorer: CTRLEval) -> None:
    few, more = (like(scorer, evaluators=n).score(FOOD) for n in (1, 3))
    for aspect in ("coherence", "consistency"):
        np.testing.assert_allclose(few[aspect], more[aspect], atol=1e-5)
    assert (few["attribute_relevance"] != more["attribute_relevance"]).all()


def test_the_plain_mean_needs_no_word_frequencies(scorer: CTRLEval) -> None:
    options = {"iwf": "no/such/table.txt", "aspects": ["coherence", "consistency"]}
    without = CTRLEval(scorer.model, weights="mean", **options)
    assert not np.isnan(list(without.score(FOOD).values())).any()
    paper = CTRLEval(scorer.model, **options)
    with pytest.raises((OSError, ValueError), match="table"):
        paper.score(FOOD)


def test_weights_that_are_unknown_raise() -> None:
    with pytest.raises(ValueError, match="weights must be one of beta, mean"):
        CTRLEval(weights="max")


def test_more_evaluators_than_the_task_has_raise() -> None:
    with pytest.raises(ValueError, match=r"evaluators must be 1 to 72, .* got 73"):
        CTRLEval(evaluators=73)


# Verbalizers of several tokens.

PHRASES = Task(
    ["<gen_result> It was <mask_token>."],
    {"negative": ["bad", "not very good"], "positive": ["good", "very good"]},
)


def share_of_sums(log_probs: dict[str, list[float]]) -> list[float]:
    """β-weighted label probabilities: each label's sum over the sum of all."""
    sums = [sum(np.exp(row)) for row in log_probs.values()]
    return [value / sum(sums) for value in sums]


def test_phrases_as_filled_by_an_encoder_decoder(scorer: CTRLEval) -> None:
    plain = PlainSeq2Seq("pegasus", scorer.model)

    def likelihood(phrase: str) -> float:
        asked = blank(f"{FOOD.texts[0]} It was ", ".", (phrase,))
        return float(plain.log_probs(*plain.passes(asked, phrase)).mean())

    expected = {k: [likelihood(w) for w in words] for k, words in PHRASES.verbalizers.items()}
    assert len(plain.ids("not very good")) == 7
    result = like(scorer, task=PHRASES).probabilities(FOOD.texts[:1])[0]
    np.testing.assert_allclose(result, share_of_sums(expected), atol=1e-5)


def mean_share(log_probs: dict[str, list[float]]) -> list[float]:
    """Each label's share of an evaluator's words, averaged over evaluators."""
    evaluators = np.exp(np.array(list(log_probs.values()))).T
    return list(np.mean([row / sum(row) for row in evaluators], axis=0))


def test_phrases_as_continued_by_a_decoder(tiny_llama: Callable[[str], str]) -> None:
    """Phrases are scored to the end of the prompt, without β by default."""
    folder = tiny_llama(ascii_letters + " .!,:\n")
    plain = PlainCausal(folder)

    def likelihood(phrase: str) -> float:
        context = f"{FOOD.texts[0]} It was"
        ids = plain.tokenizer(f"{context} {phrase}.").input_ids  # a token a character
        return float(plain.log_probs([0, *ids], 1 + len(context)).mean())

    expected = {k: [likelihood(w) for w in words] for k, words in PHRASES.verbalizers.items()}
    result = CTRLEval(folder, PHRASES).probabilities(FOOD.texts[:1])[0]
    np.testing.assert_allclose(result, mean_share(expected), atol=1e-5)
    result = CTRLEval(folder, PHRASES, weights="beta").probabilities(FOOD.texts[:1])[0]
    np.testing.assert_allclose(result, share_of_sums(expected), atol=1e-5)


# Explanations.


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
    (parts,) = like(scorer, task=task).explain(FOOD[:1])
    patterns = {
        aspect: [(e.left, e.target, e.right, e.candidates) for e in part.evaluators]
        for aspect, part in parts.items()
    }
    first, second = "The food was good.", "We will come back."
    assert patterns == {
        "coherence": [
            (" ", first, f" {second}", (first,)),
            (f"{first} ", second, " ", (second,)),
        ],
        "consistency": [
            ("The food ", f" was good. {second}", "", (f" was good. {second}",)),
            ("", "The food", f"  was good. {second}", ("The food",)),
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
