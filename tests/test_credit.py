"""Token credit: the tokens of a text sum to its reward, and get what they have earned."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import save_bert
from transformers import BertForSequenceClassification, BertForTokenClassification, BertModel

from ctrlreward import Alignment, CTRLEval, Reward, Samples
from ctrlreward.credit import token_credit
from ctrlreward.text.sentences import split_sentences

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "The soup was cold, and we waited an hour. Nobody said sorry! I would not go back.",
    "  The bread was good.\n\nThe staff was quick.  ",
    "Soup",
    "the and was",
    "",
    "The soup was cold, and we waited an hour. Nobody said sorry! I would not go back.",
]
SAMPLES = Samples(
    texts=TEXTS,
    prefixes=["The soup was", "  The", "", "the", "", "The soup was"],
    sources=["We waited for cold soup.", "Good bread, quick staff.", "A hot soup.", "x", "y", "z"],
    references=["Cold soup.", "Good bread.", "Soup.", "All was well.", "y", "Soup."],
    contexts=["The menu has soup.", "Bread.", "Soup.", "was", "y", "z"],
    histories=["How was it?", "And the bread?", "What?", "Who?", "y", "z"],
)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("encoder"), BertModel)


def whole_tokens(text: str) -> list[tuple[int, int]]:
    """Tokens of three characters, white space included, as of a policy."""
    cuts = [*range(0, len(text), 3), len(text)]
    return list(pairwise(cuts)) or [(0, 0)]


def by_characters(parts: list[tuple[int, float]], tokens: list[tuple[int, int]]) -> list[float]:
    """Give each part at the token that holds its last character, by loops."""
    row = [0.0] * len(tokens)
    for end, value in parts:
        holders = [t for t, (start, stop) in enumerate(tokens) if start < end <= stop]
        row[holders[0] if holders else -1] += value
    return row


OFFSETS = [whole_tokens(text) for text in TEXTS]

ALIGNED = [
    ("consistency", "consistency"),
    ("relevance", "relevance"),
    ("relevance", "relevance_output"),
    ("preservation", "preservation"),
    ("preservation", "preservation_output"),
    ("engagingness", "engagingness"),
    ("groundedness", "groundedness"),
]


@pytest.mark.parametrize(("aspect", "name"), ALIGNED)
def test_alignment_is_given_at_the_aligned_tokens(encoder: str, aspect: str, name: str) -> None:
    """In proportion to the values of `explain`; what is not counted gets nothing."""
    scorer = Alignment(encoder, aspects=aspect)  # type: ignore[arg-type]
    batch, tokens = token_credit(scorer[name], SAMPLES, OFFSETS)
    scores = scorer[name](SAMPLES)
    np.testing.assert_allclose(batch.total, scores, atol=1e-12)
    assert np.isnan(scores[4])
    direction = {"relevance": "relevance_output", "preservation": "preservation_output"}
    explained = scorer.explain(SAMPLES)
    for i, text in enumerate(TEXTS):
        if math.isnan(scores[i]):
            assert np.isnan(tokens[i]).all()
            continue
        assert tokens[i].sum() == pytest.approx(scores[i], abs=1e-6)
        aligned = explained[i][direction.get(name, name)]
        start = len(text) - len(text.lstrip())
        counted = [t for t in aligned.tokens if t.counted]
        whole = sum(t.value for t in counted)
        parts = [(start + t.end, t.value * scores[i] / whole) for t in counted]
        assert tokens[i] == pytest.approx(by_characters(parts, OFFSETS[i]), abs=1e-9)
    assert (tokens[0] != 0).sum() > 3


@pytest.mark.parametrize("method", ["discriminative", "regression"])
def test_trained_aligners_too(method: str, tmp_path: Path) -> None:
    """A regression has a value for the whole text, which is given at its end."""
    if method == "discriminative":
        labels = {0: "other", 1: "aligned"}
        model = save_bert(tmp_path, BertForTokenClassification, id2label=labels)
    else:
        model = save_bert(tmp_path, BertForSequenceClassification, num_labels=1)
    scorer = Alignment(model, aspects="consistency", method=method)  # type: ignore[arg-type]
    batch, tokens = token_credit(scorer, SAMPLES, OFFSETS)
    for row, total in zip(tokens, batch.total, strict=True):
        assert row.sum() == pytest.approx(total, abs=1e-6, nan_ok=True)
    if method == "regression":
        assert (tokens[0][:-1] == 0).all()


@pytest.mark.parametrize("weights", ["beta", "mean", "max", "min"])
def test_coherence_is_given_at_the_end_of_each_sentence(
    tiny_causal: Callable[[str], str], weights: str
) -> None:
    scorer = CTRLEval(tiny_causal("llama"), aspects="coherence", weights=weights)  # type: ignore[arg-type]
    batch, tokens = token_credit(scorer, SAMPLES, OFFSETS)
    np.testing.assert_allclose(batch.total, scorer.score(SAMPLES)["coherence"], atol=1e-9)
    assert np.isnan(batch.total[4])
    explained = scorer.explain(SAMPLES)
    for i, text in enumerate(TEXTS):
        if i == 4:
            continue
        assert tokens[i].sum() == pytest.approx(batch.total[i], abs=1e-6)
        evaluators = explained[i]["coherence"].evaluators
        ends = [text.find(s) + len(s) for s in split_sentences(text)]
        parts = [(end, e.weight * e.score) for end, e in zip(ends, evaluators, strict=True)]
        assert tokens[i] == pytest.approx(by_characters(parts, OFFSETS[i]), abs=1e-9)
    assert (tokens[0] != 0).sum() == (1 if weights in ("max", "min") else 3)


def letters(texts: list[str]) -> list[float | None]:
    return [len(text) or None for text in texts]


def test_weighted_components_and_what_lies_before_the_tokens(encoder: str) -> None:
    """The policy wrote what follows the prefix; the rest of the reward is given at the end."""
    alignment = Alignment(encoder, aspects="consistency")
    reward = Reward({"faithful": (alignment["consistency"], 3.0), "long": (letters, 0.01)})
    prefixes = SAMPLES.prefixes or ()
    written = [
        [(a, b) for a, b in row if a >= len(prefix)] or [(len(text), len(text))]
        for row, prefix, text in zip(OFFSETS, prefixes, TEXTS, strict=True)
    ]
    batch, tokens = token_credit(reward, SAMPLES, written)
    expected = reward(SAMPLES)
    np.testing.assert_allclose(batch.total, expected.total, atol=1e-9)
    assert list(batch.components) == ["faithful", "long"]
    _, alone = token_credit(alignment, SAMPLES, OFFSETS)
    for i in (0, 1, 3):
        kept = len(written[i])
        assert tokens[i].sum() == pytest.approx(expected.total[i], abs=1e-6)
        assert tokens[i][:-1] == pytest.approx(3 * alone[i][-kept:][:-1])
        before = 3 * alone[i][:-kept].sum() + 0.01 * len(TEXTS[i])
        assert tokens[i][-1] == pytest.approx(3 * alone[i][-1] + before)
    assert batch.failed.tolist() == [False, False, False, False, True, False]
    assert np.isnan(tokens[4]).all()


def test_an_exception_names_the_scorer(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Alignment(encoder, aspects="consistency")
    monkeypatch.setattr(Alignment, "credit_samples", lambda *_: {}["odd"])
    with pytest.raises(KeyError, match="odd") as raised:
        token_credit(scorer, SAMPLES, OFFSETS)
    assert raised.value.__notes__ == ["raised by Alignment (consistency) for 6 samples"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_tokens_sum_to_the_reward(encoder: str, data: st.DataObject) -> None:
    """Also where a tokenizer gives special tokens (0, 0), or leaves out white space."""
    scorer = Alignment(encoder, aspects="relevance")
    samples = SAMPLES[[0, 1]]
    offsets = []
    for text in samples.texts:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2)))
        kept = data.draw(st.lists(st.sampled_from(list(pairwise(cuts))), min_size=1, unique=True))
        offsets.append([*sorted(kept), (0, 0)])
    batch, tokens = token_credit(scorer["relevance"], samples, offsets)
    assert [row.sum() for row in tokens] == pytest.approx(batch.total, abs=1e-6)
    assert [len(row) for row in tokens] == [len(row) for row in offsets]


def test_refused(encoder: str, tiny_causal: Callable[[str], str]) -> None:
    scorer = Alignment(encoder, aspects="relevance")
    with pytest.raises(ValueError, match=r"no component of the reward \(letters\) can be given by"):
        token_credit(letters, SAMPLES, OFFSETS)
    with pytest.raises(ValueError, match=r"\(relevance_reference\) can be given by token"):
        token_credit(scorer["relevance_reference"], SAMPLES, OFFSETS)
    lowest = Reward({"a": scorer["relevance"], "b": letters}, aggregate="min")
    with pytest.raises(ValueError, match="has another aggregate, must be 'weighted'"):
        token_credit(lowest, SAMPLES, OFFSETS)
    with pytest.raises(ValueError, match="offsets are for 5 texts, and there are 6 samples"):
        token_credit(scorer["relevance"], SAMPLES, OFFSETS[:5])
    with pytest.raises(ValueError, match=r"offsets\[4\] = \[\]: must have one token or more"):
        token_credit(scorer["relevance"], SAMPLES, [*OFFSETS[:4], [], OFFSETS[5]])
    with pytest.raises(ValueError, match="needs the column"):
        token_credit(scorer["relevance"], TEXTS, OFFSETS)
    shouting = CTRLEval(
        tiny_causal("llama"), aspects="coherence", sentence_splitter=lambda text: [text.upper()]
    )
    with pytest.raises(ValueError, match=r"is not in texts\[0\].*must leave sentences as they are"):
        token_credit(shouting, SAMPLES[[0]], OFFSETS[:1])
