"""The server's own contract, by real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ctrlreward import LexiconSentiment, Reward, Samples
from ctrlreward.samples import records_of
from ctrlreward.serving.description import describe

Start = Callable[..., Any]

SAMPLES = Samples(["soup", "", "noon"], labels=["o", "o", "n"])


def test_labels_of_several_attributes(live_server: Start) -> None:
    """As an object over HTTP, for a scorer of each attribute."""
    reward = Reward(LexiconSentiment("accuracy", attribute="sentiment"))
    client = live_server(reward).client
    rows = [("A lovely soup.", "positive"), ("An awful soup.", "positive")]
    samples = [{"text": t, "label": {"topic": "soup", "sentiment": label}} for t, label in rows]
    results = client.post("/score", json={"samples": samples}).json()["results"]
    assert [result["total"] for result in results] == [1.0, 0.0]
    for label, named in (({"sentiment": "glad"}, "'glad'"), ({"topic": "soup"}, "'sentiment'")):
        body = {"samples": [{"text": "soup", "label": label}]}
        reply = client.post("/score", json=body)
        assert (reply.status_code, named in reply.json()["detail"]) == (422, True)


def test_a_reply_has_the_fingerprint(live_server: Start, reward: Reward) -> None:
    client = live_server(reward).client
    described = client.get("/ready").json()
    assert described == {"status": "ready", **describe(reward)}
    reply = client.post("/score", json={"samples": records_of(SAMPLES)}).json()
    assert reply["fingerprint"] == described["fingerprint_id"]


def test_a_server_that_loads_is_alive_but_not_ready(
    live_server: Start, letters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.go.clear()
    monkeypatch.setattr(letters, "load", lambda: letters.go.wait(60))
    server = live_server(Reward({"letters": letters["letters"]}), wait=False)
    try:
        assert server.client.get("/health").status_code == 200
        asked = server.client.post("/score", json={"samples": []})
        for reply in (server.client.get("/ready"), asked):
            assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
            assert "loading" in reply.json()["detail"]
    finally:
        letters.go.set()


def test_a_token_is_needed_where_there_is_one(live_server: Start, reward: Reward) -> None:
    client = live_server(reward, token="s3cret").client
    wrong = ("Bearer s3cre", "Bearer s3cret2", "Bearer \u00e9", "s3cret")
    for headers in ({}, *({"Authorization": value.encode()} for value in wrong)):
        for asked in (
            client.post("/score", json={"samples": []}, headers=headers),
            client.get("/metrics", headers=headers),
        ):
            assert (asked.status_code, asked.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.get("/ready", headers=headers).json() == {"status": "ready"}
    headers = {"Authorization": "Bearer s3cret"}
    assert client.post("/score", json={"samples": []}, headers=headers).status_code == 200
    assert client.get("/ready", headers=headers).json()["weights"] == reward.weights
    assert client.get("/health").status_code == 200


def test_a_web_page_of_another_host_can_not_ask(live_server: Start, reward: Reward) -> None:
    client = live_server(reward).client
    evil = {"Host": "evil.example"}
    reply = client.post("/score", json={"samples": []}, headers=evil)
    assert (reply.status_code, "CTRLREWARD_TOKEN" in reply.json()["detail"]) == (400, True)


def test_a_body_of_another_type_is_not_read(live_server: Start, reward: Reward) -> None:
    """As `curl -d` sends it without a header."""
    client, body = live_server(reward).client, b'{"samples": []}'
    for kind, status in (
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("application/json; charset=utf-8", 200),
    ):
        reply = client.post("/score", content=body, headers={"Content-Type": kind})
        assert reply.status_code == status


def test_metrics_count_replies_samples_and_failures(live_server: Start, reward: Reward) -> None:
    client = live_server(reward).client
    client.post("/score", json={"samples": records_of(SAMPLES)})
    client.post("/score", json=[])
    expected = {
        'ctrlreward_requests_total{route="/score",status="200"} 1.0',
        'ctrlreward_requests_total{route="/score",status="422"} 1.0',
        "ctrlreward_samples_total 3.0",
        "ctrlreward_failed_samples_total 1.0",
        "ctrlreward_scoring_seconds_count 1.0",
        "ctrlreward_pending_requests 0.0",
    }
    end = time.monotonic() + 10  # a reply is counted once it is sent
    while (absent := expected - {*client.get("/metrics").text.splitlines()}) and (
        time.monotonic() < end
    ):
        time.sleep(0.05)
    assert not absent
