"""Clients that send nonsense, too much, too slowly, or hang up; and bursts of requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest
from fakes import Letters, letters_reward

from ctrlreward import RemoteReward, Reward, Samples
from ctrlreward.serving import application
from ctrlreward.serving.batcher import MOST_CHARACTERS
from ctrlreward.serving.get_reward import GetReward

Start = Callable[..., Any]


def one(text: str, label: str = "o") -> dict[str, Any]:
    return {"samples": [{"text": text, "label": label}]}


def send(server: Any, body: bytes, length: int | None = None) -> HTTPConnection:
    """Send the beginning of a request to /score on a connection of its own."""
    connection = HTTPConnection(*server.address, timeout=10)
    connection.putrequest("POST", "/score")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(length or len(body)))
    connection.endheaders(body)
    return connection


def test_long_bodies_are_refused_and_not_kept(
    live_server: Start, reward: Reward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MOST_BYTES", 1000)
    server = live_server(reward)
    for text in ("a" * 1000, "a" * 10_000_000):  # the client reads no reply before it has sent all
        reply = server.client.post("/score", json=one(text))
        assert reply.status_code == 413
    chunks = (b" " * 100 for _ in range(50))  # without a length
    assert server.client.post("/score", content=chunks).status_code == 411
    assert send(server, b"{", length=10**12).getresponse().status == 413  # before it is sent
    assert server.client.post("/score", json=one("soup")).status_code == 200


def test_a_text_longer_than_any_model_reads_is_refused(
    live_server: Start, reward: Reward, letters: Letters
) -> None:
    """Before it is tokenized, which would hold up all clients for seconds."""
    client = live_server(reward, get_reward=GetReward(-1.0, columns={"labels": "label"})).client
    long = "o" * (MOST_CHARACTERS + 1)
    for long_one in (one(long), {"samples": [{"text": "soup", "label": "o", "reference": [long]}]}):
        reply = client.post("/score", json=long_one)
        assert reply.status_code == 422
        assert long not in reply.text
    body = {"query": [long], "prompts": [""], "labels": ["o"]}
    assert client.post("/get_reward", json=body).status_code == 422
    assert letters.calls == []
    assert client.post("/score", json=one(long[1:])).status_code == 200


def test_a_stranger_is_refused_before_the_body_is_read(live_server: Start, reward: Reward) -> None:
    server = live_server(reward, token="s3cret")
    for body in (b"{", b"[" * 100_000):  # the rest is never sent
        reply = send(server, body, length=10**6).getresponse()
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    # A path in the Host is no path.
    reply = server.client.post("/score", json=one("soup"), headers={"Host": "x/health?"})
    assert reply.status_code == 401


def test_clients_that_hang_up_harm_nobody(
    live_server: Start, reward: Reward, letters: Letters
) -> None:
    server = live_server(reward)
    letters.go.clear()
    held = send(server, json.dumps(one("hold")).encode())
    assert letters.held.wait(60)
    gone = send(server, json.dumps(one("gone")).encode())
    stays = send(server, json.dumps(one("stays")).encode())
    batcher = server.app.state.batcher
    server.wait_until(lambda: len(batcher.waiting) == 2)
    gone.close()
    held.close()
    letters.go.set()
    assert stays.getresponse().status == 200
    assert letters.calls == [("hold",), ("gone", "stays")]
    assert server.client.post("/score", json=one("soup")).status_code == 200


def test_all_requests_of_a_burst_are_scored_in_the_end(live_server: Start) -> None:
    """32 clients ask at once, of which four may wait: they are refused, and ask again."""
    server = live_server(letters_reward(0.005), waiting=4)
    asked = [Samples(["o" * (900 + i)] * 50, labels=["o"] * 50) for i in range(64)]
    remote = RemoteReward(server.url)
    with ThreadPoolExecutor(32) as threads:
        found = [batch.components["letters"] for batch in threads.map(remote, asked)]
    remote.release()
    assert [letters.tolist() for letters in found] == [[900.0 + i] * 50 for i in range(64)]
    assert 'route="/score",status="503"' in server.client.get("/metrics").text


VALUES = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "open": '{"a":' * 100_000,
    "nested": "[" * 900 + "]" * 900,
    "object": '{"a":' * 300 + "1" + "}" * 300,
    "integer": "9" * 5000,
    "large": "-" + "9" * 4000,
    "nan": "NaN",
    "infinity": "-Infinity",
    "exponent": "1e999",
    "surrogate": r'"my secret \ud800"',
    "null": "null",
}
JSON = {"Content-Type": "application/json"}
BODIES = [
    ("/score", "%s"),
    ("/score", '{"samples": [{"text": %s, "label": "o", "reference": %s}]}'),
    ("/score", '{"samples": [{"text": "soup", "label": {"tone": %s}}]}'),
    ("/score", '{"samples": [{"text": "soup", "label": "o", "prefix": %s}]}'),
    ("/get_reward", '{"query": [%s], "prompts": ["x"], "labels": [%s]}'),
]


def test_no_json_breaks_a_route_and_no_text_is_repeated(
    live_server: Start, reward: Reward, caplog: pytest.LogCaptureFixture
) -> None:
    """What is not JSON, more than a parser takes, or no text of ours, is an error of the client."""
    caplog.set_level("INFO")
    served = GetReward(-1.0, columns={"labels": "label"})
    client = live_server(reward, get_reward=served).client
    for route in ("/score", "/get_reward"):
        for damaged in (b"", b"\xff", b'{"query": [}'):
            assert client.post(route, content=damaged, headers=JSON).status_code in (400, 422)
    for route, body in BODIES:
        for name, value in VALUES.items():
            content = body.replace("%s", value).encode()
            reply = client.post(route, content=content, headers=JSON)
            sent = f"{route} {body} {name}: {reply.status_code} {reply.text[:200]}"
            malformed = name in ("deep", "open", "integer")
            assert reply.status_code in ((400, 422) if malformed else (200, 422)), sent
            json.loads(reply.content, parse_constant=pytest.fail)
            if "tone" not in body and body != "%s":
                assert "my secret" not in reply.text, sent
    assert "my secret" not in caplog.text
