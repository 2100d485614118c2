"""The service's JSON: what is written reads back exactly, and what is wrong is named."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import RewardBatch, Samples
from ctrlreward.serving.wire import (
    ScoredRequest,
    fold_body,
    fold_reply,
    parse_fold_body,
    parse_fold_reply,
    parse_score_body,
    parse_score_reply,
    parse_scorer_body,
    parse_scores_reply,
    score_body,
    score_reply,
    scorer_body,
    scores_reply,
)
from ctrlreward.serving.wire_values import InvalidBody, dumps, loads

anything = st.floats(width=64)
texts = st.text(alphabet=st.characters(codec=None))  # with unpaired surrogates


@st.composite
def batches(draw: st.DrawFn) -> ScoredRequest:
    n = draw(st.integers(0, 4))
    column = st.lists(anything, min_size=n, max_size=n).map(np.array)
    components = {name: draw(column).astype(np.float64) for name in ("relevance", "fluency")}
    failed = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    total = np.where(failed, np.nan, np.nan_to_num(draw(column))).astype(np.float64)
    errors = {i: "unknown label" for i in range(n) if failed[i]}
    return ScoredRequest(RewardBatch(total, components, failed, 0.25), errors)


@given(batches())
def test_rewards_survive_the_wire_exactly(scored: ScoredRequest) -> None:
    names = list(scored.batch.components)
    reply = loads(dumps(score_reply(scored)))
    back = parse_score_reply(reply, names, len(scored.batch.total))
    np.testing.assert_array_equal(back.batch.total, scored.batch.total)
    np.testing.assert_array_equal(back.batch.failed, scored.batch.failed)
    assert list(back.batch.components) == names
    for name, values in scored.batch.components.items():
        np.testing.assert_array_equal(back.batch.components[name], values)
    assert back.errors == scored.errors
    assert back.batch.seconds == scored.batch.seconds


def test_the_reply_is_the_json_that_the_contract_shows() -> None:
    nan = math.nan
    batch = RewardBatch(
        np.array([0.73, nan]),
        {"relevance": np.array([0.7, nan]), "perplexity": np.array([np.inf, 3.0])},
        np.array([False, True]),
        0.12,
    )
    reply = json.loads(dumps(score_reply(ScoredRequest(batch, {1: "no label"}))))
    assert reply == {
        "results": [
            {
                "total": 0.73,
                "components": {"relevance": 0.7, "perplexity": "Infinity"},
                "failed": False,
            },
            {
                "total": None,
                "components": {"relevance": None, "perplexity": 3.0},
                "failed": True,
                "error": "no label",
            },
        ],
        "seconds": 0.12,
    }


@given(st.lists(st.tuples(texts, texts, texts)), st.booleans())
def test_samples_survive_the_wire(rows: list[tuple[str, str, str]], strict: bool) -> None:
    samples = Samples([])
    if rows:
        prefixes, ends, labels = zip(*rows, strict=True)
        samples = Samples(
            [a + b for a, b in zip(prefixes, ends, strict=True)], prefixes=prefixes, labels=labels
        )
    body = parse_score_body(loads(dumps(score_body(samples, strict))))
    assert (body.samples, body.strict) == (samples, strict)
    asked = parse_scorer_body(loads(dumps(scorer_body(samples, ["coherence"]))))
    assert (asked.samples, asked.names) == (samples, ("coherence",))


@given(st.lists(anything), anything)
def test_scores_and_folds_survive_the_wire(values: list[float], value: float) -> None:
    array = np.array(values, dtype=np.float64)
    reply = loads(dumps(scores_reply({"coherence": array})))
    back = parse_scores_reply(reply, ["coherence"], len(values))
    np.testing.assert_array_equal(back["coherence"], array)
    body = parse_fold_body(loads(dumps(fold_body("perplexity", [array, array]))))
    assert body.name == "perplexity"
    np.testing.assert_array_equal(body.parts, [array, array])
    np.testing.assert_equal(parse_fold_reply(loads(dumps(fold_reply(value)))), value)


@pytest.mark.parametrize(
    ("body", "place", "kind", "message"),
    [
        ([], (), "dict_type", r"\[\] is not an object with the keys 'samples'"),
        (None, (), "dict_type", "null is not an object"),
        ({}, ("samples",), "missing", "'samples' is missing"),
        ({"sample": [], "samples": []}, ("sample",), "extra_forbidden", "did you mean samples"),
        ({"samples": {}}, ("samples",), "list_type", "not a list of records"),
        ({"samples": ["soup"]}, ("samples", 0), "dict_type", "'soup' is not an object"),
        ({"samples": [{"text": 3}]}, ("samples", 0, "text"), "string_type", "3 is not a string"),
        (
            {"samples": [{"text": "a"}, {"label": "b"}]},
            ("samples", 1, "text"),
            "missing",
            r"samples\[1\] has no 'text'",
        ),
        (
            {"samples": [{"text": "a", "lable": "b"}]},
            ("samples", 0, "lable"),
            "extra_forbidden",
            "did you mean label",
        ),
        (
            {"samples": [{"text": "a"}, {"text": "b", "label": "c"}]},
            ("samples", 1, "label"),
            "extra_forbidden",
            "the same keys",
        ),
        (
            {"samples": [{"text": "a", "prefix": "a"}, {"text": "b", "prefix": "a"}]},
            ("samples", 1, "prefix"),
            "value_error",
            "prefix = 'a' does not start text = 'b'",
        ),
        ({"samples": [], "strict": 1}, ("strict",), "bool_type", "1 is not true or false"),
    ],
)
def test_a_wrong_body_is_named(body: Any, place: Any, kind: str, message: str) -> None:
    with pytest.raises(InvalidBody, match=message) as raised:
        parse_score_body(body)
    assert (raised.value.place, raised.value.kind) == (place, kind)
    assert raised.value.detail()[0]["loc"] == ["body", *place]


@pytest.mark.parametrize("item", [True, "NaN", [], 10**400, math.nan])
def test_what_is_no_score_is_named(item: Any) -> None:
    with pytest.raises(InvalidBody, match="is not a score") as raised:
        parse_fold_body({"name": "perplexity", "parts": [[1.0, item]]})
    assert raised.value.place == ("parts", 0, 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"1" * 5000])
def test_malformed_json_is_an_error_that_does_not_quote_it(content: bytes) -> None:
    with pytest.raises(ValueError, match="malformed JSON"):
        loads(content)


@pytest.mark.parametrize(
    "reply",
    [
        {"results": [], "seconds": 0.1},
        {"results": [{"total": 1.0, "components": {}, "failed": False}], "seconds": 0.1},
        {"results": [{"total": 1.0, "components": {"a": 1.0}, "failed": 0}], "seconds": 0.1},
    ],
)
def test_a_reply_of_another_form_is_no_score(reply: Any) -> None:
    with pytest.raises(InvalidBody):
        parse_score_reply(reply, ["a"], 1)
