"""Clients that send nonsense, too much, too slowly, or hang up; and bursts of requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import numpy as np
import pytest
from letter_scorers import Letters, hanging_reward, letters_reward

from ctrlreward import RemoteReward, Reward, Samples
from ctrlreward.serving.limits import QueueOptions, ServeOptions

Start = Callable[..., Any]


def one(text: str, label: str = "o") -> dict[str, Any]:
    return {"samples": [{"text": text, "label": label}]}


def send(server: Any, body: bytes, length: int | None = None) -> socket.socket:
    """Send the beginning of a request to /score on a connection of its own."""
    connection = socket.create_connection(server.address, timeout=60)
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_reply(connection: socket.socket) -> bytes:
    """Read until the server closes the connection or pauses after a whole reply."""
    content = b""
    while b"\r\n\r\n" not in content:
        content += connection.recv(65536)
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\n" + body


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000])
def test_malformed_json(live_server: Start, reward: Reward, content: bytes) -> None:
    reply = live_server(reward).client.post("/score", content=content)
    assert reply.status_code == 400
    assert "malformed JSON" in reply.json()["detail"]


def test_a_compressed_body_is_refused(live_server: Start, reward: Reward) -> None:
    client, body = live_server(reward).client, json.dumps(one("soup")).encode()
    sent = client.post("/score", content=body, headers={"Content-Encoding": "Identity"})
    assert sent.status_code == 200
    packed = gzip.compress(body)
    for route in ("/score", "/get_reward"):  # one that does not exist here, too
        refused = client.post(route, content=packed, headers={"Content-Encoding": "gzip"})
        assert refused.status_code == 415
        detail = "the body has Content-Encoding: gzip, must be sent uncompressed"
        assert refused.json() == {"detail": detail}


def test_long_bodies_are_refused_and_not_kept(live_server: Start, reward: Reward) -> None:
    server = live_server(reward, ServeOptions(body_bytes=1000))
    in_chunks = (b" " * 100 for _ in range(50))  # without a length
    for content in (json.dumps(one("a" * 1000)).encode(), in_chunks):
        reply = server.client.post("/score", content=content)
        assert reply.status_code == 413
        assert "longer than 1000 bytes" in reply.json()["detail"]
    with send(server, b"{", length=10**12) as connection:  # before it is sent
        assert b" 413 " in read_reply(connection)
    assert server.client.post("/score", json=one("soup")).status_code == 200


def test_an_absent_column_is_named(live_server: Start, reward: Reward) -> None:
    reply = live_server(reward).client.post("/score", json={"samples": [{"text": "soup"}]})
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["msg"].startswith("Letters needs the column 'labels'")


def test_an_unknown_label_fails_alone_or_a_strict_request(
    live_server: Start, reward: Reward
) -> None:
    client = live_server(reward).client
    samples = [{"text": "soup", "label": label} for label in ("o", "p", "sour", "s")]
    reply = client.post("/score", json={"samples": samples})
    assert reply.status_code == 200
    results = reply.json()["results"]
    assert [result["failed"] for result in results] == [False, False, True, False]
    assert results[2]["error"] == "labels[2] = 'sour' is unknown: give one letter"
    assert results[3]["total"] == reward([samples[3]]).total[0]
    reply = client.post("/score", json={"samples": samples, "strict": True})
    assert reply.status_code == 422
    (error,) = reply.json()["detail"]
    assert error["loc"] == ["body", "samples", 2, "label"]
    assert error["msg"] == "labels[2] = 'sour' is unknown: give one letter"


def test_a_scorer_that_fails_by_itself(
    live_server: Start, reward: Reward, caplog: pytest.LogCaptureFixture
) -> None:
    client = live_server(reward).client
    reply = client.post("/score", json=one("broken"))
    assert reply.status_code == 500
    assert reply.json()["detail"] == "RuntimeError: no memory for 'broken'"
    samples = [{"text": text, "label": "o"} for text in ("soup", "broken", "noon")]
    results = client.post("/score", json={"samples": samples}).json()["results"]
    assert [result["failed"] for result in results] == [False, True, False]
    assert "broken" not in caplog.text


def test_an_error_of_the_server_is_logged_without_its_message(
    live_server: Start, reward: Reward, caplog: pytest.LogCaptureFixture
) -> None:
    server = live_server(reward)

    async def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("soup")

    server.app.state.requests.score = failing
    with caplog.at_level(logging.INFO):
        reply = server.client.post("/score", json=one("soup"))
    assert (reply.status_code, reply.json()["detail"]) == (500, "the server failed: RuntimeError")
    assert "RuntimeError at " in caplog.text
    assert "soup" not in caplog.text


def test_a_client_that_hangs_up_leaves_the_queue(
    live_server: Start, reward: Reward, letters: Letters
) -> None:
    server = live_server(reward)
    letters.go.clear()
    held = send(server, json.dumps(one("hold")).encode())
    assert letters.held.wait(60)
    gone = send(server, json.dumps(one("gone")).encode())
    stays = send(server, json.dumps(one("stays")).encode())
    queue = server.app.state.requests
    server.wait_until(lambda: queue.held_characters == len("hold" + "gone" + "stays") + 3)
    gone.close()
    server.wait_until(lambda: queue.held_characters == len("hold" + "stays") + 2)
    held.close()  # its scoring runs already: the result is dropped
    line = 'ctrlreward_requests_total{route="/score",status="499"} 2.0'
    server.wait_until(lambda: line in server.client.get("/metrics").text)
    letters.go.set()
    assert b" 200 " in read_reply(stays)
    stays.close()
    assert letters.calls == [("hold",), ("stays",)]


def test_a_slow_client_does_not_hold_up_others(live_server: Start, reward: Reward) -> None:
    server = live_server(reward)
    body = json.dumps(one("soup")).encode()
    with send(server, body[:1], length=len(body)) as slow:
        for i in range(1, len(body), 9):
            assert server.client.post("/score", json=one("noon")).status_code == 200
            slow.sendall(body[i : i + 9])
        assert b" 200 " in read_reply(slow)


def test_a_body_that_never_ends_is_given_up(live_server: Start, reward: Reward) -> None:
    server = live_server(reward, ServeOptions(body_seconds=0.2))
    with send(server, b"{", length=100) as slow:
        assert b" 408 " in read_reply(slow)


def test_a_scorer_that_hangs_fails_its_batch_and_the_server(live_server: Start) -> None:
    reward = hanging_reward(timeout=0.3)
    client = live_server(reward).client
    assert client.post("/score", json=one("soup")).status_code == 200
    reply = client.post("/score", json=one("hold"))
    assert reply.status_code == 500
    named = "ScoringTimeout: scoring 1 samples did not end within timeout = 0.3 s, it is at "
    assert reply.json()["detail"].startswith(named)
    assert "in score_samples. Fix" in reply.json()["detail"]
    # Its thread holds the scorer for good: who watches the server restarts it.
    for reply in (client.get("/ready"), client.post("/score", json=one("soup"))):
        assert reply.status_code == 500
        assert "not ready: failed: scoring 1 samples did not end" in reply.json()["detail"]
    assert client.get("/health").status_code == 200
    reward["letters"].scorer.go.set()  # ends the thread


def closed_within(connection: socket.socket, seconds: float) -> bool:
    """Return True if the server closes a connection in that time, without another reply."""
    connection.settimeout(seconds)
    try:
        return connection.recv(65536) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("beginning", [b"", b"POST /sc", b"POST /score HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_never_end_are_given_up(
    live_server: Start, reward: Reward, beginning: bytes
) -> None:
    server = live_server(reward, ServeOptions(body_seconds=0.3))
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(beginning)
        assert not closed_within(connection, 0.1)
        assert closed_within(connection, 20)


@pytest.mark.parametrize("piece", [b"X: a\r\n", b"X: " + b"a" * 65_536, b"a" * 65_536])
def test_headers_without_a_limit_are_refused(
    live_server: Start, reward: Reward, piece: bytes
) -> None:
    with socket.create_connection(live_server(reward).address, timeout=20) as connection:
        connection.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(piece * (40_000_000 // len(piece)))


def test_a_request_with_two_lengths_is_the_last_of_its_connection(
    live_server: Start, reward: Reward
) -> None:
    body = json.dumps(one("soup")).encode()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    with socket.create_connection(live_server(reward).address, timeout=60) as connection:
        connection.sendall(head + chunks + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 400 " in read_reply(connection)
        assert closed_within(connection, 20)


def test_headers_of_a_second_request_that_never_end(live_server: Start, reward: Reward) -> None:
    server = live_server(reward, ServeOptions(body_seconds=0.3))
    with send(server, json.dumps(one("soup")).encode()) as connection:
        assert b" 200 " in read_reply(connection)
        connection.sendall(b"POST /score HTTP/1.1\r\nHo")
        assert not closed_within(connection, 0.1)
        assert closed_within(connection, 4)  # before uvicorn closes an idle connection, after 5


def test_a_request_may_take_longer_than_its_headers(
    live_server: Start, reward: Reward, letters: Letters
) -> None:
    server = live_server(reward, ServeOptions(body_seconds=0.3))
    letters.go.clear()
    with send(server, json.dumps(one("hold")).encode()) as held:
        assert letters.held.wait(60)
        assert not closed_within(held, 0.6)
        letters.go.set()
        held.settimeout(60)
        assert b" 200 " in read_reply(held)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "sample",
    [
        {"text": "my secret", "label": "sour"},
        {"text": "my secret", "lable": "o"},
        {"text": ["my secret"], "label": "o"},
        {"text": "x", "source": {"my secret": 3}},
        {"text": "my secret", "label": "o", "prefix": 4},
        {"text": "my secret", "label": "o", "prefix": "my own secret"},
    ],
)
def test_a_refusal_echoes_no_text(
    live_server: Start, reward: Reward, sample: dict[str, Any], strict: bool
) -> None:
    reply = live_server(reward).client.post(
        "/score", json={"samples": [sample, sample], "strict": strict}
    )
    assert "my secret" not in reply.text
    assert "input" not in reply.text


def test_a_full_queue_asks_to_come_back(
    live_server: Start, reward: Reward, letters: Letters
) -> None:
    server = live_server(reward, ServeOptions(QueueOptions(waiting_characters=100)))
    letters.go.clear()
    with send(server, json.dumps(one("hold")).encode()) as held:
        assert letters.held.wait(60)
        refused = server.client.post("/score", json=one("a" * 100))
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        letters.go.set()
        assert b" 200 " in read_reply(held)
    # A request above the limit is scored where nothing else waits.
    assert server.client.post("/score", json=one("a" * 100)).status_code == 200


def test_bodies_together_are_limited(live_server: Start, reward: Reward) -> None:
    """Slow clients that each send most of a large body hold a bounded amount of memory."""
    server = live_server(reward, ServeOptions(body_bytes=1000))
    slow = [send(server, b" " * 990, length=1000) for _ in range(32)]
    server.wait_until(lambda: server.client.get("/health").status_code == 200)
    last = send(server, b" " * 990, length=1000)
    assert b" 503 " in last.recv(65536)
    for connection in (*slow, last):
        connection.close()
    server.wait_until(lambda: server.client.post("/score", json=one("soup")).status_code == 200)


def test_a_training_is_served_during_a_burst(live_server: Start) -> None:
    """400 connections ask at once, of which few fit: all are scored in the end, none lost."""
    seconds, sent = 0.005, 400
    options = ServeOptions(QueueOptions(batch_characters=1000, waiting_requests=50))
    server = live_server(letters_reward(seconds), options)
    queue = server.app.state.requests
    statuses: Counter[int] = Counter()
    most = [0]

    async def ask(asks: httpx2.AsyncClient, i: int) -> float:
        body = {"samples": [{"text": "o" * (900 + i), "label": "o"}]}
        while True:
            try:
                reply = await asks.post("/score", json=body)
            except httpx2.NetworkError:  # an idle connection was closed meanwhile
                statuses[0] += 1
                continue
            most[0] = max(most[0], queue.held_characters)
            statuses[reply.status_code] += 1
            if reply.status_code == 200:
                return float(reply.json()["results"][0]["components"]["letters"])
            assert reply.status_code in (429, 503)
            assert int(reply.headers["Retry-After"]) >= 1
            await asyncio.sleep(0.1)

    async def burst() -> list[float]:
        # Pools of few connections: at each request, a pool looks at all of its connections.
        async with AsyncExitStack() as stack:
            pools = [
                await stack.enter_async_context(
                    httpx2.AsyncClient(base_url=server.url, timeout=120, verify=False)
                )
                for _ in range(sent // 20)
            ]
            return await asyncio.gather(*(ask(pools[i // 20], i) for i in range(sent)))

    found: list[float] = []
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(burst())))
    training, texts = RemoteReward(server.url), Samples(["soup", "noon"], labels=["o", "n"])
    expected = letters_reward()(texts).total
    training.load()
    thread.start()
    server.wait_until(lambda: statuses[429] > 100)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        np.testing.assert_array_equal(training(texts).total, expected)
        times.append(time.perf_counter() - started)
    assert thread.is_alive(), "the burst is over"
    thread.join(120)
    training.release()
    assert found == [900.0 + i for i in range(sent)]
    assert statuses[200] == sent
    assert most[0] < 2 * 50 * 1300
    # The queue of the burst takes 50 calls; a request that waited for it would take a second.
    assert sorted(times)[5] < 1.0
