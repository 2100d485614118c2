"""A burst of requests, as an evaluation sends them, beside the requests of a training."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import numpy as np
from letter_scorers import Letters, letters_reward
from serving.test_request_queue import behind_a_held_one, labelled, with_queue

from ctrlreward import RemoteReward, Samples
from ctrlreward.serving.limits import QueueOptions, ServeOptions, client
from ctrlreward.serving.request_queue import RequestQueue

Start = Callable[..., Any]


def test_clients_take_turns(letters: Letters, reward: Any) -> None:
    async def asked(queue: RequestQueue, name: str, text: str) -> None:
        client.set(name)
        await queue.score(labelled(text))

    async def work(queue: RequestQueue) -> None:
        names = [*["evaluation"] * 9, *["training"] * 2, "other"]
        calls = [asked(queue, name, f"{name} {i}") for i, name in enumerate(names)]
        await behind_a_held_one(queue, letters, calls)

    with_queue(reward, work, QueueOptions(batch_characters=1))
    order = [text.split()[0] for (text,) in letters.calls]
    assert order[:3] == ["evaluation", "training", "other"]
    assert order[3:5] == ["evaluation", "training"]
    assert order[5:] == ["evaluation"] * 7


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


def test_bodies_together_are_limited(live_server: Start, reward: Any) -> None:
    """Slow clients that each send most of a large body hold a bounded amount of memory."""
    from serving.test_faults import send

    server = live_server(reward, ServeOptions(body_bytes=1000))
    slow = [send(server, b" " * 990, length=1000) for _ in range(32)]
    server.wait_until(lambda: server.client.get("/health").status_code == 200)
    last = send(server, b" " * 990, length=1000)
    assert b" 503 " in last.recv(65536)
    for connection in (*slow, last):
        connection.close()
    body = {"samples": [{"text": "soup", "label": "o"}]}
    server.wait_until(lambda: server.client.post("/score", json=body).status_code == 200)
