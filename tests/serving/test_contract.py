"""The service's JSON: what is written reads back exactly, and what is wrong is named."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ctrlreward import RewardBatch, Samples
from ctrlreward.samples import records_of
from ctrlreward.serving.contract import Sample, ScoreBody, ScoreReply, dumps, score_reply

anything = st.floats(width=64)
texts = st.text(alphabet=st.characters(codec=None))  # with unpaired surrogates


@st.composite
def batches(draw: st.DrawFn) -> RewardBatch:
    n = draw(st.integers(0, 4))
    column = st.lists(anything, min_size=n, max_size=n).map(np.array)
    components = {name: draw(column).astype(np.float64) for name in ("relevance", "fluency")}
    failed = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    total = np.where(failed, np.nan, np.nan_to_num(draw(column))).astype(np.float64)
    return RewardBatch(total, components, failed, 0.25)


@given(batches())
def test_rewards_survive_the_wire_exactly(batch: RewardBatch) -> None:
    names = list(batch.components)
    reply = ScoreReply.model_validate(json.loads(dumps(score_reply(batch, "f"))))
    back = reply.to_batch(names, len(batch.total))
    np.testing.assert_array_equal(back.total, batch.total)
    np.testing.assert_array_equal(back.failed, batch.failed)
    assert list(back.components) == names
    for name, values in batch.components.items():
        np.testing.assert_array_equal(back.components[name], values)
    assert back.seconds == batch.seconds


def test_the_reply_is_the_json_that_the_contract_shows() -> None:
    nan = math.nan
    batch = RewardBatch(
        np.array([0.73, nan]),
        {"relevance": np.array([0.7, nan]), "perplexity": np.array([np.inf, 3.0])},
        np.array([False, True]),
        0.12,
    )
    reply = json.loads(dumps(score_reply(batch, "f")))
    assert reply == {
        "results": [
            {
                "total": 0.73,
                "components": {"relevance": 0.7, "perplexity": "Infinity"},
                "failed": False,
            },
            {"total": None, "components": {"relevance": None, "perplexity": 3.0}, "failed": True},
        ],
        "seconds": 0.12,
        "fingerprint": "f",
    }


@given(st.lists(st.tuples(texts, texts, texts)))
def test_samples_survive_the_wire(rows: list[tuple[str, str, str]]) -> None:
    samples = Samples([])
    if rows:
        prefixes, ends, labels = zip(*rows, strict=True)
        samples = Samples(
            [a + b for a, b in zip(prefixes, ends, strict=True)], prefixes=prefixes, labels=labels
        )
    body = ScoreBody.model_validate(json.loads(dumps({"samples": records_of(samples)})))
    assert body.to_samples() == samples


A, LABELLED, PREFIXED = ({"text": "a"} | more for more in ({}, {"label": "c"}, {"prefix": "a"}))
BODIES = [([], (), "model_type"), ({}, ("samples",), "missing"),
          ({"sample": [], "samples": []}, ("sample",), "extra_forbidden")]  # fmt: skip
# The samples of a body, and the place below.
SAMPLES = [
    ({}, (), "list_type"),
    (["soup"], (0,), "model_type"),
    ([{"text": 3}], (0, "text"), "string_type"),
    ([A, {"label": "b"}], (1, "text"), "missing"),
    ([{"text": "a", "lable": "b"}], (0, "lable"), "extra_forbidden"),
    ([A, LABELLED], (), "value_error"),
    ([LABELLED, A], (), "value_error"),
    ([{"text": "a", "label": None}], (0, "label"), "string_type"),
    ([PREFIXED, PREFIXED | {"text": "b"}], (1, "prefix"), "value_error"),
]


@pytest.mark.parametrize(
    ("body", "place", "kind"),
    [*BODIES, *(({"samples": s}, ("samples", *place), kind) for s, place, kind in SAMPLES)],
)
def test_a_wrong_body_is_named(body: Any, place: Any, kind: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ScoreBody.model_validate(body)
    (detail,) = raised.value.errors()
    assert (detail["loc"], detail["type"]) == (place, kind)


@pytest.mark.parametrize("item", [True, "NaN", [], 10**400, math.nan])
def test_what_is_no_score_is_named(item: Any) -> None:
    result = {"total": item, "components": {}, "failed": False}
    reply = {"results": [result], "seconds": 0.1, "fingerprint": "f"}
    with pytest.raises(ValidationError) as raised:
        ScoreReply.model_validate(reply)
    assert raised.value.errors()[0]["loc"] == ("results", 0, "total")


@pytest.mark.parametrize(
    "results",
    [
        [],
        [{"total": 1.0, "components": {}, "failed": False}],
        [{"total": 1.0, "components": {"a": 1.0}, "failed": 0}],
    ],
)
def test_a_reply_of_another_form_is_no_score(results: Any) -> None:
    reply = {"results": results, "seconds": 0.1, "fingerprint": "f"}
    with pytest.raises(ValueError, match="results"):
        ScoreReply.model_validate(reply).to_batch(["a"], 1)


def test_a_label_may_be_an_object() -> None:
    """With a label for each attribute, as in `Samples`; the schema says so."""
    rows = [
        {"text": "a", "label": {"sentiment": "good", "topic": 3, "tense": None}},
        {"text": "b", "label": "sentiment=bad topic=4"},
    ]
    body = ScoreBody.model_validate_json(json.dumps({"samples": rows}))
    named = {"sentiment": ["good", "bad"], "topic": [3, 4]}
    assert body.to_samples() == Samples(["a", "b"], labels=named)
    assert records_of(body.to_samples())[0]["label"] == "sentiment=good topic=3"
    kinds = {each["type"] for each in Sample.model_json_schema()["properties"]["label"]["anyOf"]}
    assert kinds == {"string", "object"}
    with pytest.raises(ValidationError, match="my mood"):
        ScoreBody.model_validate({"samples": [{"text": "a", "label": {"my mood": "glad"}}]})
