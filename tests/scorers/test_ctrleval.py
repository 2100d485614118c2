from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest
from asked_models import FOOD, blank
from failed_rows import failures_of
from numpy.testing import assert_array_equal
from plain_models import PlainCausal, PlainSeq2Seq

from ctrlreward.failures import ItemError
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import CTRLEval

ASPECTS = ("coherence", "consistency", "attribute_relevance")

# Properties of any model, tested with the tiny PEGASUS; tests/golden/ has the published scores.


@pytest.fixture(scope="module")
def scorer(pegasus: str) -> CTRLEval:
    return CTRLEval(pegasus)


@pytest.fixture(scope="module")
def scores(scorer: CTRLEval) -> dict[str, Scores]:
    return scorer.score(FOOD)


def test_the_evaluators_are_a_classifier(scorer: CTRLEval, scores: dict[str, Scores]) -> None:
    values = scorer.probabilities([*FOOD.texts, ""])
    assert scorer.labels == ("negative", "positive")
    np.testing.assert_allclose(values[:3].sum(axis=1), 1)
    chosen = values[[0, 1, 2], [1, 1, 0]]
    np.testing.assert_allclose(chosen, scores["attribute_relevance"], atol=1e-5)
    assert np.isnan(values[3]).all()
    assert scorer.probabilities([]).shape == (0, 2)


def test_weights_come_from_a_table_or_an_object_or_wordfreq(scorer: CTRLEval, pegasus: str) -> None:
    table = Path(pegasus) / "iwf.txt"
    given = [str(table), InverseFrequency.from_file(table), None]
    weights = []
    for iwf in given:
        other = CTRLEval(scorer.model, iwf=iwf)
        weights.append(other.iwf.weights)
    np.testing.assert_array_equal(weights[0], weights[1])
    expected = InverseFrequency.from_wordfreq(scorer.loaded_model.tokenizer).weights
    np.testing.assert_array_equal(weights[2], expected)


def test_weights_of_another_vocabulary_raise(scorer: CTRLEval) -> None:
    other = CTRLEval(scorer.model, iwf=InverseFrequency(np.ones(7)))
    with pytest.raises(
        ValueError, match="iwf has 7 weights, and the model's tokenizer has 307 tokens"
    ):
        other.score(FOOD)


def test_the_model_is_loaded_at_first_use_and_again_after_release(pegasus: str) -> None:
    CTRLEval("/no/such/folder")  # nothing is read yet
    # Its own settings, because scorers with equal settings share the model.
    scorer = CTRLEval(pegasus, aspects=["consistency"], batch_tokens=999)
    before = scorer.score(FOOD)
    loaded = weakref.ref(scorer.loaded_model)
    scorer.to("cpu")
    gc.collect()
    assert loaded() is None
    after = scorer.score(FOOD)
    np.testing.assert_array_equal(before["consistency"], after["consistency"])


# Bad input.


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
    text: str,
    prefix: str,
    nan: list[str],
    scorer: CTRLEval,
    scores: dict[str, Scores],
) -> None:
    bad = Samples([text], prefixes=[prefix], labels=["negative"])
    samples = Samples.concat([FOOD[:1], bad, FOOD[1:]])
    result = scorer.score(samples)
    assert failures_of(scorer, samples).keys() == {1}
    for aspect, values in result.items():
        assert np.isnan(values).tolist() == [False, aspect in nan, False, False]
        np.testing.assert_allclose(values[[0, 2, 3]], scores[aspect], atol=1e-5)


def test_a_text_that_the_splitter_leaves_nothing_of_is_nan_and_named(scorer: CTRLEval) -> None:
    other = CTRLEval(scorer.model, aspects=["coherence"], sentence_splitter=lambda text: ["", " "])
    assert np.isnan(other.score(Samples(["The food"]))["coherence"]).all()
    assert failures_of(other, Samples(["The food"])).keys() == {0}


def test_only_the_first_max_tokens_are_read(
    tiny_llama: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_llama(ascii_letters + " .")  # a token per character
    text = "The food was good. We ate. It was late. "
    columns = {"prefixes": "The food", "labels": "positive"}
    cut = CTRLEval(model, max_tokens=26).score(["A.", text * 9], **columns | {"prefixes": ""})
    assert "360 tokens: only the first 26" in caplog.messages[0]
    whole = CTRLEval(model, max_tokens=None).score(["A.", text[:26]], **columns | {"prefixes": ""})
    for aspect, values in whole.items():
        assert_array_equal(values, cut[aspect])
    short = CTRLEval(model, "topic", "consistency", max_tokens=5).score([text], **columns)
    assert np.isnan(short["consistency"]).all()  # nothing is left after the prefix
    with pytest.raises(ValueError, match="max_tokens must be positive, got 0"):
        CTRLEval(model, max_tokens=0)


def test_an_unknown_label_raises(scorer: CTRLEval) -> None:
    with pytest.raises(ItemError, match=r"labels\[1\]"):
        scorer.score(FOOD.replace(labels=["positive", "postive", "negative"]))


@pytest.mark.parametrize("aspects", [["fluency"], []])
def test_unknown_aspects_raise(aspects: list[str]) -> None:
    message = r"aspects must be 'all' or one or more of coherence, consistency, attribute_relevance"
    with pytest.raises(ValueError, match=message):
        CTRLEval(aspects=aspects)


# A real model.


def test_a_real_model_tells_praise_from_blame() -> None:
    praise = [
        "The food was delicious, and the staff made us feel at home. I loved every minute.",
        "What a wonderful film, I laughed and cried and want to see it again.",
        "The hotel was spotless, quiet and cheap. We will come back.",
    ]
    blame = [
        "The food was cold and bland, and the waiter shouted at us. I hated every minute.",
        "What a dull film, I yawned for two hours and want my money back.",
        "The hotel was dirty, noisy and overpriced. We will never come back.",
    ]
    scorer = CTRLEval("smollm2-135m", aspects=["attribute_relevance"], evaluators=4)
    values = scorer.score(Samples(praise + blame, labels=["positive"] * 6))["attribute_relevance"]
    assert (values[:3] > values[3:] + 0.2).all()


# White space between prefix and remainder

SPACES = [" ", "  ", "\n", "\t", " \n", "\n\n"]
FAMILIES = ["llama", "gpt2", "pegasus", "t5", "bart"]


@pytest.fixture(scope="module")
def folder_of(
    tiny_causal: Callable[..., str], seq2seq_folders: dict[str, str]
) -> Callable[[str], str]:
    return lambda family: seq2seq_folders.get(family) or tiny_causal(family)


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
@pytest.mark.parametrize("space", SPACES)
def test_white_space_after_the_prefix_belongs_to_the_remainder(
    family: str, space: str, folder_of: Callable[[str], str]
) -> None:
    folder = folder_of(family)
    options = {"aspects": "consistency", "weights": "mean", "calibration": False}
    scorer = CTRLEval(folder, **options)  # type: ignore[arg-type]
    text = f"The food{space}was good."
    prefixes = ["The food" + space[:n] for n in range(len(space) + 1)]
    found = scorer.score([text] * len(prefixes), prefixes=prefixes)["consistency"]
    np.testing.assert_array_equal(found, found[0])
    expected = plain_consistency(family, folder, f"{space}was good.")
    if space == " " or family in ("llama", "gpt2", "bart"):  # others read any as a space
        np.testing.assert_allclose(found, expected, atol=1e-5)
    alone = scorer.score([text, text, text + space], prefixes=[text, "", text])["consistency"]
    assert np.isnan(alone).all()
