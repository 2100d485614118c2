"""A served reward against the same reward in this process: throughput and latency.

    ctrlreward serve reward.yaml --port 8700 &
    python benchmarks/serving.py reward.yaml http://127.0.0.1:8700 [--clients 1 8 64]

A client has a connection of its own and sends one text after another, each distinct, labelled
"negative" or "positive" in turn. The reward here scores the same texts in batches of 64 while the
server waits. Latency is that of a request as the client sees it.
"""

from __future__ import annotations

import asyncio
import json
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from side_by_side import machine, parse_options, running_texts

from ctrlreward import Reward, Samples
from ctrlreward.command_line.reward_file import build_reward

BATCH = 64  # of the reward in this process


def in_batches(reward: Reward, samples: Samples) -> np.ndarray:
    starts = range(0, len(samples), BATCH)
    parts = [samples[list(range(i, min(i + BATCH, len(samples))))] for i in starts]
    return np.concatenate([reward(part).total for part in parts])


async def one_by_one(
    url: str, samples: Samples, clients: int
) -> tuple[np.ndarray, list[float], float]:
    """Return totals, the seconds of each request, and those of all together."""
    waiting = iter(enumerate(zip(samples.texts, samples.labels, strict=True)))
    found, seconds = np.full(len(samples), np.nan), []
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)

    async def client(pool: httpx2.AsyncClient) -> None:
        for i, (text, label) in waiting:
            started = time.perf_counter()
            body = {"samples": [{"text": text, "label": label}]}
            reply = (await pool.post("/score", json=body)).raise_for_status().json()
            seconds.append(time.perf_counter() - started)
            total = reply["results"][0]["total"]
            found[i] = np.nan if total is None else total

    async with httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as pool:
        started = time.perf_counter()
        await asyncio.gather(*(client(pool) for _ in range(clients)))
        return found, seconds, time.perf_counter() - started


def main() -> None:
    def add_options(parser: Any) -> None:
        parser.add_argument("reward", type=Path, help="YAML file of the served reward")
        parser.add_argument("url")
        parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
        parser.add_argument("--words", type=int, default=40, help="words per text")

    options = parse_options(__doc__, 2 * BATCH, add_options)
    reward, texts = build_reward(options.reward), running_texts(options.texts, options.words)
    labels = [label for _, label in zip(texts, cycle(("negative", "positive")), strict=False)]
    samples = Samples(texts, labels=labels)
    asyncio.run(one_by_one(options.url, samples, BATCH))  # warm-up
    in_batches(reward, samples)
    print(f"# {machine()}, {options.texts} texts of {options.words} words")
    print("clients  served /s  here /s  ratio  p50 s  p95 s  p99 s  difference")
    for clients in options.clients:
        pairs, latencies, difference = [], [], 0.0
        for _ in range(options.runs):
            found, seconds, served_s = asyncio.run(one_by_one(options.url, samples, clients))
            started = time.perf_counter()
            expected = in_batches(reward, samples)
            pairs.append((served_s, time.perf_counter() - started))
            latencies += seconds
            difference = max(difference, float(abs(found - expected).max()))
        served_s, here_s = np.median(pairs, axis=0)
        latency = "".join(f"{value:7.3f}" for value in np.percentile(latencies, (50, 95, 99)))
        ratio = np.median([here / served for served, here in pairs])
        print(
            f"{clients:7}{len(texts) / served_s:11.2f}{len(texts) / here_s:9.2f}{ratio:7.2f}"
            f"{latency}{difference:12.1e}"
        )
        record = {"clients": clients, "pairs_s": pairs, "largest_difference": difference}
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
