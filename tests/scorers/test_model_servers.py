"""What scorers of served models have in common: the client, its key and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from judge_server import Refusal, Server, started

from ctrlreward import Judge, RemoteRewardModel, Rubric, Scorer

RATE = Rubric("How warm is this? {text}", [1, 2, 3], name="reward")
# A good reply, of which the value is 3, and one of another kind.
REPLIES: dict[str, tuple[Any, Any]] = {
    "Judge": ({"choices": [{"message": {"content": "3"}}]}, {"choices": []}),
    "RemoteRewardModel": ({"data": [{"probs": [3.0]}]}, {"data": [{"embedding": [3.0]}]}),
}

pytestmark = pytest.mark.parametrize("kind", REPLIES)


def scorer_of(kind: str, address: str, **options: Any) -> Scorer:
    if kind == "Judge":
        return Judge("m", RATE, f"{address}/v1", **options)
    return RemoteRewardModel(address, **options)


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    """A server of a scorer's kind that replies well."""
    with started(lambda path, body: REPLIES[kind][0]) as server:
        yield server


def test_a_busy_server_is_asked_again(kind: str, server: Server) -> None:
    replies = [Refusal(503, "0.01"), Refusal(429, "0.01"), b'{"data": cut', REPLIES[kind][0]]
    server.answer = lambda path, body: replies.pop(0)
    assert scorer_of(kind, server.url).score(["Tea."])["reward"] == [3.0]


def test_a_server_without_an_answer_is_an_error(kind: str, server: Server) -> None:
    for reply, requests in (
        (Refusal(503, "0.01"), 3),
        (Refusal(404, content=b"no such model"), 1),
        (b"<html>", 1),
        (REPLIES[kind][1], 1),
    ):
        server.requests.clear()
        server.answer = lambda path, body, reply=reply: reply
        with pytest.raises(ConnectionError, match=server.url):
            scorer_of(kind, server.url, max_retries=2).score(["Tea."])
        assert len(server.requests) == requests
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:9"):
        scorer_of(kind, "http://127.0.0.1:9", max_retries=0).score(["Tea."])


def test_the_key_is_of_the_named_variable_alone(
    kind: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    scorer_of(kind, server.url).score(["Tea."])
    named = scorer_of(kind, server.url, key_variable="KEY")
    with pytest.raises(ValueError, match="KEY"):
        named.score(["Tea."])
    monkeypatch.setenv("KEY", "secret")
    named.score(["Tea."])
    keys = [headers.get("authorization") for _, headers, _ in server.requests]
    assert keys == [None, "Bearer secret"]
