"""Attribute relevance without the bias of the label words."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from asked_models import blank, filled

from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.samples import Samples
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.task import Task

PROMPTS = ["<gen_result> It was about <mask_token>.", "News: <mask_token> <gen_result>"]
WORDS = {"food": ["food", "a meal"], "pets": ["dogs", "cats"], "cars": ["cars", "roads"]}
TASK = Task(PROMPTS, WORDS)
TWO = Task(PROMPTS, {label: WORDS[label] for label in ("food", "pets")})
TEXTS = ["The food was good.", "My dog sleeps. It is old.", "We drove home."]
SAMPLES = Samples(TEXTS, labels=["food", "pets", "food"])
REFERENCES = ["It is late.", "They said so. I heard it."]


def relevance(model: str, calibration: object, task: Task = TASK, **options: object) -> CTRLEval:
    return CTRLEval(model, task, "attribute_relevance", calibration=calibration, **options)


@pytest.fixture(scope="module")
def causal(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(ascii_letters + " .!,:;\n'-")


def test_the_bias_is_that_of_single_evaluators(pegasus: str) -> None:
    """A task of one evaluator has the shares of its words, whose ratios are all that matters."""
    shares = []
    for prompt in PROMPTS:
        for i in (0, 1):
            task = Task([prompt], {label: [words[i]] for label, words in WORDS.items()})
            values, priors = (
                np.log(relevance(pegasus, False, task).probabilities(texts))
                for texts in (TEXTS, REFERENCES)
            )
            ratios = np.exp(values - priors.mean(axis=0))
            shares.append(ratios / ratios.sum(axis=1, keepdims=True))
    result = relevance(pegasus, REFERENCES, weights="mean").probabilities(TEXTS)
    np.testing.assert_allclose(result, np.mean(shares, axis=0), atol=1e-5)


def test_score_explanation_and_probabilities_agree(causal: str) -> None:
    scorer = relevance(causal, REFERENCES)
    (scores,) = scorer.score(SAMPLES).values()
    explained = [parts["attribute_relevance"] for parts in scorer.explain(SAMPLES)]
    np.testing.assert_array_equal(scores, [part.score for part in explained])
    for part in explained:
        mean = sum(e.score * e.weight for e in part.evaluators)
        assert mean == pytest.approx(part.score, rel=1e-12)
    probabilities = scorer.probabilities(TEXTS)
    np.testing.assert_allclose(probabilities[[0, 1, 2], [0, 1, 0]], scores, atol=1e-5)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    (without,) = relevance(causal, False).score(SAMPLES).values()
    assert (np.abs(without - scores) > 1e-3).all()


@pytest.mark.parametrize(
    ("family", "task", "expected"),
    [("causal", TASK, True), ("causal", TWO, False), ("pegasus", TASK, False)],
)
def test_by_default_only_a_decoder_with_three_labels_or_more_is_calibrated(
    family: str, task: Task, expected: bool, request: pytest.FixtureRequest
) -> None:
    """And only a decoder has neutral contexts."""
    model = request.getfixturevalue(family)
    default, explicit, other = (
        relevance(model, calibration, task).probabilities(TEXTS)
        for calibration in (None, expected, not expected)
    )
    np.testing.assert_array_equal(default, explicit)
    assert np.abs(default - other).max() > 1e-3
    gained, plain = (CTRLEval(model, task, calibration=c).score(PAIRS) for c in (None, False))
    for aspect in ("coherence", "consistency"):
        assert (np.abs(gained[aspect] - plain[aspect]).max() > 1e-3) == (family == "causal")


def test_reference_texts_are_scored_once_until_the_model_is_freed(
    causal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = relevance(causal, True, weights="mean")
    model, calls = scorer.loaded_model, list[Any]()
    answer = model.answer
    monkeypatch.setattr(model, "answer", lambda tasks: calls.append(tasks) or answer(tasks))
    first = scorer.score(SAMPLES)["attribute_relevance"]
    (references, texts) = calls
    assert len(references) == len(neutral_texts())
    assert len(texts) == len(TEXTS)
    scorer.probabilities(TEXTS)
    scorer.explain(SAMPLES)
    assert [len(blanks) for blanks in calls[2:]] == [len(texts)] * 2
    scorer.release()
    scorer.loaded_model = model
    np.testing.assert_array_equal(scorer.score(SAMPLES)["attribute_relevance"], first)
    assert [len(blanks) for blanks in calls[4:]] == [len(references), len(texts)]


PAIRS = Samples(
    ["The food was good. We paid little.", "My dog sleeps."], prefixes=["The", "My dog"]
)


def mean_log_prob(scorer: CTRLEval, left: str, right: str, target: str) -> float:
    """Mean log-probability of one target, by the infiller alone."""
    ((found,),) = filled(scorer.loaded_model, [blank(left, right, (target,))])
    return float(found.log_probs.mean())


def test_half_of_the_neutral_likelihood_of_each_target_is_taken_off(causal: str) -> None:
    references = ["It is late.", "They said so.", "A third text is not read."]
    scorer = CTRLEval(causal, TASK, weights="mean", calibration=references)
    scores = scorer.score(PAIRS)
    for i, parts in enumerate(scorer.explain(PAIRS)):
        assert {name: part.score for name, part in parts.items()} == {
            n: v[i] for n, v in scores.items()
        }
    food, paid = "The food was good.", "We paid little."
    alone = mean_log_prob(scorer, "", "", "My dog sleeps.")
    patterns = {  # of each text: its context, and on which side a neutral text replaces it
        ("coherence", 0): [("", paid, food, "right"), (food, "", paid, "left")],
        ("consistency", 0): [
            ("The", "", "food was good. We paid little.", "left"),
            ("", "food was good. We paid little.", "The", "right"),
        ],
        ("consistency", 1): [("My dog", "", "sleeps.", "left"), ("", "sleeps.", "My dog", "right")],
    }
    for (aspect, i), rows in patterns.items():
        expected = []
        for left, right, target, side in rows:
            neutral = [
                mean_log_prob(scorer, *(("", text) if side == "right" else (text, "")), target)
                for text in references[:2]
            ]
            expected.append(mean_log_prob(scorer, left, right, target) - np.mean(neutral) / 2)
        assert scores[aspect][i] == pytest.approx(np.mean(np.minimum(expected, 0)), abs=1e-5)
    assert scores["coherence"][1] == pytest.approx(alone / 2, abs=1e-5)  # has no context to gain by
