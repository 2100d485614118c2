"""The JSON of the service: nothing is lost or changed on the wire."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import RewardBatch, Samples
from ctrlreward.samples import records_of
from ctrlreward.serving.contract import ScoreBody, ScoreReply, dumps, score_reply

texts = st.text(st.characters(), max_size=8)  # with unpaired surrogates


@st.composite
def batches(draw: st.DrawFn) -> RewardBatch:
    n = draw(st.integers(0, 4))

    def column(values: st.SearchStrategy[Any]) -> Any:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=np.float64)

    names = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    failed = np.array([draw(st.booleans()) for _ in range(n)], dtype=np.bool_)
    total = np.where(failed, np.nan, column(st.floats(allow_nan=False, allow_infinity=False)))
    return RewardBatch(total, {name: column(st.floats()) for name in names}, failed, 0.25)


@given(batches())
def test_rewards_survive_the_wire_exactly(batch: RewardBatch) -> None:
    names = list(batch.components)
    reply = ScoreReply.model_validate(json.loads(score_reply(batch, "f")))
    back = reply.to_batch(names, len(batch.total))
    np.testing.assert_array_equal(back.total, batch.total)
    np.testing.assert_array_equal(back.failed, batch.failed)
    assert list(back.components) == names
    for name, values in batch.components.items():
        np.testing.assert_array_equal(back.components[name], values)
    assert (back.seconds, reply.fingerprint) == (batch.seconds, "f")


def test_the_reply_is_the_json_that_the_page_shows() -> None:
    components = {"relevance": np.array([0.7, np.nan]), "perplexity": np.array([np.inf, 3.0])}
    batch = RewardBatch(np.array([0.73, np.nan]), components, np.array([False, True]), 0.12)
    first, second = json.loads(score_reply(batch, "f"))["results"]
    read = {"relevance": 0.7, "perplexity": "Infinity"}
    assert first == {"total": 0.73, "components": read, "failed": False}
    read = {"relevance": None, "perplexity": 3.0}
    assert second == {"total": None, "components": read, "failed": True}


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
