"""The server's own contract, by real HTTP."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fastapi import APIRouter, Request

from ctrlreward import Accuracy, LexiconSentiment, Reward, Samples
from ctrlreward.samples import records_of
from ctrlreward.scorers.base import Scores
from ctrlreward.serving.contract import FINGERPRINT_HEADER
from ctrlreward.serving.limits import ServeOptions

Start = Callable[..., Any]

SAMPLES = Samples(["soup", "", "noon", "a b"], labels=["o", "o", "n", "x"])


def test_labels_of_several_attributes(live_server: Start) -> None:
    """As an object over HTTP, for a scorer of each attribute; a wrong one fails alone."""

    class Mentions:
        labels = ("soup", "trip")

        def probabilities(self, texts: Sequence[str]) -> Scores:
            return np.array([[0.75, 0.25] if "soup" in text else [0.5, 0.5] for text in texts])

    sentiment = LexiconSentiment("accuracy", attribute="sentiment")
    topic = Accuracy(Mentions(), attribute="topic")["label_probability"]
    reward = Reward({"sentiment": sentiment, "topic": topic}, aggregate="geometric_mean")
    texts = ["A lovely soup.", "An awful soup.", "A lovely trip.", "A lovely soup."]
    labels = [{"sentiment": "positive", "topic": name} for name in ("soup", "soup", "trip", "tea")]
    samples = [{"text": t, "label": label} for t, label in zip(texts, labels, strict=True)]
    client = live_server(reward).client
    results = client.post("/score", json={"samples": samples}).json()["results"]
    assert [result["total"] for result in results] == pytest.approx(
        [0.75**0.5, 0.0, 0.5**0.5, None]
    )
    assert results[3]["failed"]
    assert "'tea' of the attribute 'topic' is not a label of the classif" in results[3]["error"]
    here = reward(texts[:3], labels=labels[:3]).total
    assert [result["total"] for result in results[:3]] == here.tolist()
    del samples[1]["label"]["topic"]
    results = client.post("/score", json={"samples": samples}).json()["results"]
    assert "does not name the attribute 'topic'" in results[1]["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "place"),
    [
        ("/scorers/7/score", {"samples": [], "names": []}, 404, None),
        ("/scorers/0/score", {"samples": [], "names": ["lenght"]}, 422, ["names", 0]),
        ("/scorers/0/fold", {"name": "length", "parts": []}, 422, ["name"]),
        ("/scorers/0/fold", {"name": "letters", "parts": [[1.0]]}, 422, ["parts"]),
        ("/nowhere", {}, 404, None),
    ],
)
def test_unknown_names_are_named(
    live_server: Start, reward: Reward, path: str, body: Any, status: int, place: Any
) -> None:
    reply = live_server(reward).client.post(path, json=body)
    assert reply.status_code == status
    if place:
        assert reply.json()["detail"][0]["loc"] == ["body", *place]


def test_a_small_reply_is_sent_at_once(live_server: Start, reward: Reward) -> None:
    """Not after the 40 ms for which TCP holds the second packet of a reply back."""
    live = live_server(reward)
    live.client.get("/health")  # the connection stays open
    connections = [each.transport for each in live.server.server_state.connections]
    assert connections
    for connection in connections:
        taken = connection.get_extra_info("socket")
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_every_reply_has_the_fingerprint(live_server: Start, reward: Reward) -> None:
    client = live_server(reward).client
    described = client.get("/reward").json()
    assert described["components"] == {
        "letters": {"scorer": "0", "score": "letters"},
        "length": {"scorer": "0", "score": "length"},
    }
    replies = [
        client.get("/health"),
        client.get("/nowhere"),
        client.post("/score", content=b"{"),
        client.post("/score", json=[]),
        client.post("/score", json={"samples": records_of(SAMPLES)}),
    ]
    for reply in replies:
        assert reply.headers[FINGERPRINT_HEADER] == described["fingerprint_id"]


def test_the_routes_are_described(live_server: Start, reward: Reward) -> None:
    client = live_server(reward).client
    assert client.get("/docs").status_code == 200
    page = client.get("/openapi.json").json()
    paths, schemas = page["paths"], page["components"]["schemas"]
    content = paths["/score"]["post"]["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/ScoreBody"}
    assert schemas["ScoreBody"]["required"] == ["samples"]
    assert schemas["Sample"]["required"] == ["text"]
    assert {"/reward", "/health", "/ready", "/metrics"} <= set(paths)


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


def test_a_server_that_can_not_load_says_why(
    live_server: Start, letters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise OSError("No such folder: models/rater")

    monkeypatch.setattr(letters, "load", load)
    server = live_server(Reward({"letters": letters["letters"]}), wait=False)
    server.wait_until(lambda: "No such folder: models/rater" in server.client.get("/ready").text)
    reply = server.client.get("/ready")
    assert (reply.status_code, reply.headers.get("Retry-After")) == (500, None)  # asking is no use


def test_a_token_is_needed_where_there_is_one(live_server: Start, reward: Reward) -> None:
    options = ServeOptions(token="s3cret")
    client = live_server(reward, options).client
    for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
        refused = client.post("/score", json={"samples": []}, headers=headers)
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    headers = {"Authorization": "Bearer s3cret"}
    assert client.post("/score", json={"samples": []}, headers=headers).status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/reward").status_code == 401


def test_further_routes_score_with_the_queue(live_server: Start, reward: Reward) -> None:
    router = APIRouter()

    @router.post("/bare")
    async def bare(request: Request) -> float:
        samples = Samples([(await request.json())["text"]], labels=["o"])
        scored = await request.app.state.requests.score(samples)
        return float(scored.batch.total[0])

    client = live_server(reward, routers=(router,)).client
    assert client.post("/bare", json={"text": "soup"}).json() == pytest.approx(0.3 + 0.4)


def test_metrics_count_replies_samples_and_failures(live_server: Start, reward: Reward) -> None:
    client = live_server(reward).client
    client.post("/score", json={"samples": records_of(SAMPLES)})
    client.post("/score", json=[])
    expected = {
        'ctrlreward_requests_total{route="/score",status="200"} 1.0',
        'ctrlreward_requests_total{route="/score",status="422"} 1.0',
        "ctrlreward_samples_total 4.0",
        "ctrlreward_failed_samples_total 1.0",
        "ctrlreward_batch_samples_sum 4.0",
        "ctrlreward_queue_wait_seconds_count 1.0",
        "ctrlreward_scoring_seconds_count 1.0",
        "ctrlreward_waiting_characters 0.0",
        "ctrlreward_ready 1.0",
    }
    end = time.monotonic() + 10  # a reply is counted once it is sent
    while (absent := expected - {*client.get("/metrics").text.splitlines()}) and (
        time.monotonic() < end
    ):
        time.sleep(0.05)
    assert not absent
