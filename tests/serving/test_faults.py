"""Clients that send nonsense, too much, too slowly, or hang up; and bursts of requests."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import numpy as np
import pytest
from fakes import Letters, letters_reward

from ctrlreward import RemoteReward, Reward, Samples
from ctrlreward.serving import application

Start = Callable[..., Any]


def one(text: str, label: str = "o") -> dict[str, Any]:
    return {"samples": [{"text": text, "label": label}]}


def send(server: Any, body: bytes, length: int | None = None) -> socket.socket:
    """Send the beginning of a request to /score on a connection of its own."""
    connection = socket.create_connection(server.address, timeout=60)
    head = "POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {length or len(body)}\r\n\r\n"
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
    with send(server, b"{", length=10**12) as connection:  # before it is sent
        assert b" 413 " in read_reply(connection)
    assert server.client.post("/score", json=one("soup")).status_code == 200


def test_an_error_of_the_server_is_logged_without_its_message(
    live_server: Start, reward: Reward, caplog: pytest.LogCaptureFixture
) -> None:
    server = live_server(reward)

    async def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("soup")

    server.app.state.batcher.score = failing
    with caplog.at_level(logging.INFO):
        reply = server.client.post("/score", json=one("soup"))
    assert (reply.status_code, reply.json()["detail"]) == (500, "the server failed: RuntimeError")
    assert "RuntimeError while serving /score" in caplog.text
    assert "soup" not in caplog.text


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
    assert b" 200 " in read_reply(stays)
    stays.close()
    assert letters.calls == [("hold",), ("gone", "stays")]
    assert server.client.post("/score", json=one("soup")).status_code == 200


@pytest.mark.parametrize(
    "sample",
    [
        {"text": "my secret", "label": "sour"},
        {"text": "my secret", "lable": "o"},
        {"text": "x", "source": {"my secret": 3}},
        {"text": "my secret", "label": "o", "prefix": "my own secret"},
    ],
)
def test_a_refusal_echoes_no_text(
    live_server: Start, reward: Reward, sample: dict[str, Any]
) -> None:
    reply = live_server(reward).client.post("/score", json={"samples": [sample, sample]})
    assert reply.status_code == 422
    assert "my secret" not in reply.text
    assert '"input":' not in reply.text


def test_a_training_is_served_during_a_burst(live_server: Start) -> None:
    """200 connections ask at once, of which few fit: all are scored in the end, none lost."""
    seconds, sent = 0.005, 200
    server = live_server(letters_reward(seconds), waiting=25)
    statuses: Counter[int] = Counter()

    async def ask(asks: httpx2.AsyncClient, i: int) -> float:
        body = {"samples": [{"text": "o" * (900 + i), "label": "o"}] * 100}
        while True:
            try:
                reply = await asks.post("/score", json=body)
            except httpx2.NetworkError:  # an idle connection was closed meanwhile
                statuses[0] += 1
                continue
            statuses[reply.status_code] += 1
            if reply.status_code == 200:
                return float(reply.json()["results"][0]["components"]["letters"])
            assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
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
    server.wait_until(lambda: statuses[503] > 50)
    np.testing.assert_array_equal(training(texts).total, expected)
    thread.join(120)
    training.release()
    assert found == [900.0 + i for i in range(sent)]
    assert statuses[200] == sent
    assert set(statuses) <= {0, 200, 503}
