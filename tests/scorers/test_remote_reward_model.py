"""Reward models on servers of this test, which answer as vLLM documents it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from failed_rows import failures_of
from judge_server import Refusal, started
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ctrlreward import RemoteRewardModel, RewardModel, Samples

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["Was it good?", "How was it?", "Was the soup hot?"]
ANSWERS = ["It was.", "No. The soup was cold.", "Very! I would go back there."]
SAMPLES = Samples(ANSWERS, prompts=PROMPTS)
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

Values = Callable[[Any], list[Any]]


def as_vllm(values: Values) -> Callable[[str, Any], Any]:
    """`POST /classify` of vLLM 0.18, with these values of each text; it rejects "rejected"."""

    def answer(path: str, body: dict[str, Any]) -> Any:
        assert path == "/classify", path
        if "rejected" in body["input"]:
            return Refusal(400)
        rows = [values(text) for text in body["input"]]
        data = [
            {"index": i, "label": "LABEL_0", "probs": row, "num_classes": len(row)}
            for i, row in enumerate(rows)
        ]
        return {"id": "classify-1", "object": "list", "created": 1, "model": "m", "data": data}

    return answer


@pytest.fixture
def model(tiny_reward_model: str) -> str:
    """A reward model with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_reward_model)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tiny_reward_model)
    return tiny_reward_model


@pytest.mark.parametrize("template", [None, "plain", "Q: {prompt} A: {completion}"])
def test_a_served_model_scores_as_the_model_here(template: str | None, model: str) -> None:
    """The server computes the forward pass of the token ids that it gets, text by text."""
    served = AutoModelForSequenceClassification.from_pretrained(model).eval()

    def logit(ids: list[int]) -> list[float]:
        with torch.no_grad():
            return served(torch.tensor([ids])).logits[0].tolist()

    here = RewardModel(model, template=template)
    expected = here.score(SAMPLES)["reward"]
    with started(as_vllm(logit)) as server:
        remote = RemoteRewardModel(
            server.url, "name", tokenizer=model, template=template, batch_texts=2
        )
        np.testing.assert_allclose(remote.score(SAMPLES)["reward"], expected, rtol=0, atol=1e-5)
    assert len(np.unique(expected)) == 3
    assert len(server.requests) == 2
    assert all(body["model"] == "name" for _, _, body in server.requests)
    assert all(body["use_activation"] is False for _, _, body in server.requests)


def test_texts_without_a_value_are_nan() -> None:
    texts, prefixes = [*ANSWERS, " ", "Good", "Yes.", "rejected"], [*[""] * 4, "Good", "", ""]
    samples = Samples(texts, prefixes=prefixes, prompts=[*PROMPTS, "a", "b", "\ud800", ""])
    with started(as_vllm(lambda text: [None if "cold" in text else 1.0])) as server:
        remote = RemoteRewardModel(server.url)
        scored = remote.score(samples)["reward"]
        assert failures_of(remote, samples).keys() == {1, 3, 4, 5, 6}
    assert np.isnan(scored).tolist() == [False, True, False, True, True, True, True]
    # Strings are prompt and completion; what has no answer is not sent.
    sent = [p + a for p, a in zip(PROMPTS, ANSWERS, strict=True)] + ["rejected"]
    assert server.requests[0][2]["input"] == sent


def test_a_mistake_in_the_request_is_an_error() -> None:
    content = b'{"error": {"message": "no such task"}}'
    with started(lambda path, body: Refusal(400, None, content)) as server:
        remote = RemoteRewardModel(server.url)
        with pytest.raises(ConnectionError, match="no such task"):
            remote.score(ANSWERS)
        assert np.isnan(remote.score(ANSWERS[:1])["reward"]).all()
