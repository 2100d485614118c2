"""Reward models on servers of this test, which answer as vLLM documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from failed_rows import failures_of
from judge_server import Refusal, Server, started
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ctrlreward import RemoteRewardModel, RewardModel, Samples

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["Was it good?", "How was it?", "Was the soup hot?"]
ANSWERS = ["It was.", "No. The soup was cold.", "Very! I would go back there."]
SAMPLES = Samples(ANSWERS, prompts=PROMPTS)
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

Values = Callable[[Any], list[Any]]


def as_vllm(rows: list[Any]) -> dict[str, Any]:
    """`POST /classify` of vLLM 0.18."""
    data = [
        {"index": i, "label": "LABEL_0", "probs": row, "num_classes": len(row)}
        for i, row in enumerate(rows)
    ]
    return {"id": "classify-1", "object": "list", "created": 1, "model": "m", "data": data}


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server with the values of each text, after other replies."""
    with ExitStack() as servers:

        def start(
            values: Values = lambda text: [float(len(text))], first: Sequence[Any] = ()
        ) -> Server:
            left = [*first]

            def answer(path: str, body: dict[str, Any]) -> Any:
                assert path == "/classify", path
                return left.pop(0) if left else as_vllm([values(text) for text in body["input"]])

            return servers.enter_context(started(answer))

        yield start


@pytest.fixture
def model(tiny_reward_model: str) -> str:
    """A reward model with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_reward_model)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tiny_reward_model)
    return tiny_reward_model


@pytest.mark.parametrize("template", [None, "plain", "Q: {prompt} A: {completion}"])
def test_a_served_model_scores_as_the_model_here(
    template: str | None, model: str, serve: Callable[..., Server]
) -> None:
    """The server computes the forward pass of the token ids that it gets, text by text."""
    served = AutoModelForSequenceClassification.from_pretrained(model).eval()

    def logit(ids: list[int]) -> list[float]:
        with torch.no_grad():
            return served(torch.tensor([ids])).logits[0].tolist()

    server = serve(logit)
    remote = RemoteRewardModel(
        server.url, "name", tokenizer=model, template=template, batch_texts=2
    )
    here = RewardModel(model, template=template)
    expected = here.score(SAMPLES)["reward"]
    np.testing.assert_allclose(remote.score(SAMPLES)["reward"], expected, rtol=0, atol=1e-5)
    assert len(np.unique(expected)) == 3
    assert len(server.requests) == 2
    assert all(body["model"] == "name" for _, _, body in server.requests)
    assert all(body["use_activation"] is False for _, _, body in server.requests)


def test_texts_without_a_value_are_nan(serve: Callable[..., Server]) -> None:
    def answer(path: str, body: dict[str, Any]) -> Any:
        if any("rejected" in text for text in body["input"]):
            return Refusal(400)
        return as_vllm([[None if "cold" in text else 1.0] for text in body["input"]])

    server = serve()
    server.answer = answer
    texts, prefixes = [*ANSWERS, " ", "Good", "Yes.", "rejected"], [*[""] * 4, "Good", "", ""]
    samples = Samples(texts, prefixes=prefixes, prompts=[*PROMPTS, "a", "b", "\ud800", ""])
    remote = RemoteRewardModel(server.url)
    scored = remote.score(samples)["reward"]
    assert np.isnan(scored).tolist() == [False, True, False, True, True, True, True]
    # Strings are prompt and completion; what has no answer is not sent.
    sent = [p + a for p, a in zip(PROMPTS, ANSWERS, strict=True)] + ["rejected"]
    assert server.requests[0][2]["input"] == sent
    assert failures_of(remote, samples).keys() == {1, 3, 4, 5, 6}


def test_the_key_is_of_the_environment(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    remote = RemoteRewardModel(server.url, key_variable="RM_KEY")
    with pytest.raises(ValueError, match="RM_KEY"):
        remote.score(ANSWERS)
    monkeypatch.setenv("RM_KEY", "secret")
    remote.score(ANSWERS)
    assert server.requests[0][1]["authorization"] == "Bearer secret"


def test_a_busy_server_is_asked_again(serve: Callable[..., Server]) -> None:
    server = serve(first=[Refusal(503), b'{"data": cut'])
    found = RemoteRewardModel(server.url).score(ANSWERS)["reward"]
    assert found.tolist() == [len(answer) for answer in ANSWERS]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b'{"data": [{"probs": [1.0, 2.0]}]}',
        b'{"data": [{"embedding": [1.0]}]}',
        Refusal(404, content=b"no such model"),
    ],
)
def test_another_reply_is_an_error(content: Any, serve: Callable[..., Server]) -> None:
    server = serve(first=[content])
    with pytest.raises(ConnectionError, match=server.url):
        RemoteRewardModel(server.url).score(ANSWERS)
    assert len(server.requests) == 1  # it is not repeated
