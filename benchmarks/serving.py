"""A served reward against the same reward in-process: throughput, latency, cost of the wire.

    python benchmarks/serving.py [--texts 128] [--runs 5] [--clients 1 8 64] [--soak [SECONDS]]
    python benchmarks/serving.py --engine ray --replicas 2 [--clients 64] [--held 512]

The server is a child of this process on the loopback device, with as many threads as the reward
here; each waits while the other computes. A client has a connection of its own and sends one text
after another, each distinct; the reward in-process scores the same texts in batches of 64. Latency
is that of a request as the client sees it, its wait for others' texts included. The cost of wire
and queue is the time of a request of 32 samples beyond the seconds of scoring in its reply.

With `--engine ray` the server has one replica under Ray Serve, then `--replicas` of them, each with
one thread; the last column compares their throughput at the last number of clients. `--held` is the
most requests that a replica holds.

`--soak` asks for 600 seconds, or as many as given, with requests of 1 to 8 samples of a few texts
that repeat: it fails if a request fails, if an answer differs from the reward in-process, or if the
server's memory grows. Needs `ctrlreward[serve]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import yaml
from reward_step import CONFIG
from side_by_side import machine, parse_options, running_texts

from ctrlreward import Reward, Samples
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.serving.child_server import RewardServer
from ctrlreward.serving.contract import records

BATCH = 64  # of the reward in-process
WIRE_BATCH = 32
LARGEST_DIFFERENCE = 1e-6  # in float32; bfloat16 rounds (docs/concepts.md)

SOAK_CLIENTS, SOAK_TEXTS = 8, 64
SOAK_SECONDS = 600.0
SOAK_GROWTH_MIB = 64.0


@contextmanager
def served(path: Path, threads: int, options: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Serve the reward of a YAML file in a child; yield its URL and process id."""
    # An idle thread of OpenMP spins for a while by default, on the core of the other side.
    os.environ |= {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    server = RewardServer(path, options=options)
    with server:
        assert server.url is not None
        assert server.process is not None
        yield server.url, server.process.pid


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def labelled(texts: Sequence[str], labels: Sequence[str]) -> Samples:
    """Return texts with labels in turn."""
    return Samples(texts, labels=[label for _, label in zip(texts, cycle(labels), strict=False)])


def totals(results: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the totals of a reply; NaN where the sample failed."""
    return np.array([np.nan if r["total"] is None else r["total"] for r in results], dtype=float)


def in_batches(reward: Reward, samples: Samples, size: int) -> np.ndarray:
    """Return the totals of the reward in-process."""
    starts = range(0, len(samples), size)
    parts = [samples[list(range(i, min(i + size, len(samples))))] for i in starts]
    return np.concatenate([reward(part).total for part in parts])


async def one_by_one(
    url: str, samples: Samples, clients: int
) -> tuple[np.ndarray, list[float], float]:
    """Send samples singly, by several clients.

    Returns:
        The totals, the seconds of each request, and those of all together.
    """
    waiting = iter(enumerate(records(samples)))
    found = np.full(len(samples), np.nan)
    seconds: list[float] = []

    async def client(connection: httpx2.AsyncClient) -> None:
        for i, record in waiting:
            started = time.perf_counter()
            reply = await connection.post("/score", json={"samples": [record]})
            seconds.append(time.perf_counter() - started)
            found[i] = totals(reply.raise_for_status().json()["results"])[0]

    async with connections(url, clients) as pool:
        started = time.perf_counter()
        await asyncio.gather(*(client(pool) for _ in range(clients)))
        return found, seconds, time.perf_counter() - started


def connections(url: str, clients: int) -> httpx2.AsyncClient:
    """Return a pool with a connection for each client."""
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    return httpx2.AsyncClient(base_url=url, timeout=None, limits=limits)


def compare_throughput(url: str, reward: Reward, samples: Samples, clients: int, runs: int) -> None:
    """Print a row: throughput of clients that send one text at a time, and of the reward here."""
    pairs, latencies, difference = [], [], 0.0
    for _ in range(runs):
        found, seconds, served_s = asyncio.run(one_by_one(url, samples, clients))
        started = time.perf_counter()
        expected = in_batches(reward, samples, BATCH)
        pairs.append((served_s, time.perf_counter() - started))
        latencies += seconds
        difference = max(difference, float(abs(found - expected).max()))
    ratios = [here / served for served, here in pairs]
    served_s, here_s = np.median(pairs, axis=0)
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99))
    spread = f"{np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print(
        f"{clients:8}{len(samples) / served_s:14.2f}{len(samples) / here_s:14.2f}{spread:>20}"
        f"{p50:9.3f}{p95:9.3f}{p99:9.3f}{difference:12.1e}"
    )
    record = {"clients": clients, "samples": len(samples), "pairs_s": pairs, "ratios": ratios}
    latency = {"p50_s": float(p50), "p95_s": float(p95), "p99_s": float(p99)}
    print(json.dumps({**record, **latency, "largest_difference": difference}), flush=True)


def compare_replicas(
    path: Path,
    reward: Reward,
    samples: Samples,
    clients: int,
    runs: int,
    counts: Sequence[int],
    held: int,
) -> None:
    """Print the throughput of numbers of replicas under Ray Serve, with one thread each."""
    expected = in_batches(reward, samples, BATCH)
    rates = {}
    for count in counts:
        options = [f"--replicas={count}", f"--ray.max_ongoing_requests={held}", "--engine=ray"]
        with served(path, 1, options) as (url, _):
            asyncio.run(one_by_one(url, samples, clients))  # warm-up
            seconds, difference = [], 0.0
            for _ in range(runs):
                found, _, run_s = asyncio.run(one_by_one(url, samples, clients))
                seconds.append(run_s)
                difference = max(difference, float(abs(found - expected).max()))
        rates[count] = len(samples) / float(np.median(seconds))
        print(
            f"{count} replicas, {clients} clients: {rates[count]:.2f} texts/s, "
            f"{rates[count] / rates[counts[0]]:.2f} of {counts[0]}; difference {difference:.1e}"
        )
        record = {"replicas": count, "clients": clients, "held": held, "seconds": seconds}
        print(json.dumps({**record, "largest_difference": difference}), flush=True)


def wire_cost(url: str, reward: Reward, samples: Samples, runs: int) -> None:
    """Print the share of wire and queue in the time of a request of 32 samples."""
    shares, pairs = [], []
    starts = range(0, len(samples) - WIRE_BATCH + 1, WIRE_BATCH)
    with httpx2.Client(base_url=url, timeout=None) as connection:
        for k in range(max(runs, len(starts))):
            start = starts[k % len(starts)]
            part = samples[list(range(start, start + WIRE_BATCH))]
            started = time.perf_counter()
            reply = connection.post("/score", json={"samples": records(part)}).raise_for_status()
            middle = time.perf_counter()
            reward(part)
            pairs.append((middle - started, time.perf_counter() - middle))
            shares.append(1 - reply.json()["seconds"] / pairs[-1][0])
    served_s, here_s = np.median(pairs, axis=0)
    share = float(np.median(shares))
    print(
        f"# requests of {WIRE_BATCH}: wire and queue {share:.2%} ({min(shares):.2%} to "
        f"{max(shares):.2%}) of {served_s / WIRE_BATCH * 1e3:.2f} ms per sample; in-process "
        f"{here_s / WIRE_BATCH * 1e3:.2f} ms"
    )
    record = {"wire_share": share, "shares": shares, "pairs_s": pairs}
    print(json.dumps(record), flush=True)


async def soak(
    url: str, pid: int, samples: Samples, expected: np.ndarray, tolerance: float, seconds: float
) -> dict[str, Any]:
    """Ask for a while; return counts of requests, errors and wrong totals, and the memory."""
    counts = {"requests": 0, "samples": 0, "errors": 0, "wrong": 0}
    memory: list[float] = []
    rows, end = records(samples), time.monotonic() + seconds

    async def client(connection: httpx2.AsyncClient, seed: int) -> None:
        draw = random.Random(seed)
        while time.monotonic() < end:
            chosen = draw.choices(range(len(rows)), k=draw.randint(1, 8))
            body = {"samples": [rows[i] for i in chosen]}
            counts["requests"] += 1
            counts["samples"] += len(chosen)
            try:
                reply = (await connection.post("/score", json=body)).raise_for_status()
            except httpx2.HTTPError as error:
                counts["errors"] += 1
                print(f"# {type(error).__name__}: {error}", flush=True)
                continue
            close = abs(totals(reply.json()["results"]) - expected[chosen]) <= tolerance
            counts["wrong"] += int((~close).sum())

    async def watch() -> None:
        while True:
            memory.append(resident_mib(pid))
            await asyncio.sleep(min(10.0, seconds / 20))

    watching = asyncio.create_task(watch())
    async with connections(url, SOAK_CLIENTS) as pool:
        await asyncio.gather(*(client(pool, seed) for seed in range(SOAK_CLIENTS)))
    watching.cancel()
    # The first fifth fills caches and the heap.
    settled = memory[len(memory) // 5 :]
    return {**counts, "start_mib": settled[0], "end_mib": settled[-1], "peak_mib": max(memory)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--words", type=int, default=40, help="words per text")
    parser.add_argument("--dtype", default="float32", help="dtype of both sides")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--soak", type=float, nargs="?", const=SOAK_SECONDS, metavar="SECONDS")
    parser.add_argument("--engine", choices=["process", "ray"], default="process")
    parser.add_argument("--replicas", type=int, default=2, help="compared with one, under Ray")
    parser.add_argument("--held", type=int, default=512, help="ray.max_ongoing_requests")


def main() -> None:
    options = parse_options(__doc__, 2 * BATCH, add_options)
    if options.curve:
        return
    if options.texts < WIRE_BATCH:
        raise SystemExit(
            f"--texts {options.texts}: give {WIRE_BATCH} or more, best a multiple of 64"
        )
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    block = config["model"]["init_args"]["reward"]
    block["init_args"] |= {"dtype": options.dtype, "model": options.model}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reward.yaml"
        path.write_text(yaml.safe_dump(block), encoding="utf-8")
        reward = build_reward(path)
        reward.load()
        samples = labelled(
            running_texts(max(options.texts, SOAK_TEXTS), options.words), ("negative", "positive")
        )
        measured = samples[list(range(options.texts))]
        print(f"# {machine()}, {options.dtype}, {options.texts} texts of {options.words} words")
        if options.engine == "ray":
            counts = sorted({1, options.replicas})
            clients, runs = options.clients[-1], options.runs
            compare_replicas(path, reward, measured, clients, runs, counts, options.held)
            return
        with served(path, options.threads) as (url, pid):
            if options.soak is not None:
                repeated = samples[list(range(SOAK_TEXTS))]
                tolerance = LARGEST_DIFFERENCE if options.dtype == "float32" else np.inf
                expected = in_batches(reward, repeated, BATCH)
                record = asyncio.run(soak(url, pid, repeated, expected, tolerance, options.soak))
                print(json.dumps({"soak_s": options.soak, **record}), flush=True)
                grown = record["end_mib"] - record["start_mib"]
                if record["errors"] or record["wrong"] or grown > SOAK_GROWTH_MIB:
                    raise SystemExit("the soak failed: see the counts above")
                return
            asyncio.run(one_by_one(url, measured, BATCH))  # warm-up
            in_batches(reward, measured, BATCH)
            print(
                f"{'clients':>8}{'served /s':>14}{'here /s':>14}{'ratio (min-max)':>20}"
                f"{'p50 s':>9}{'p95 s':>9}{'p99 s':>9}{'difference':>12}"
            )
            for clients in options.clients:
                compare_throughput(url, reward, measured, clients, options.runs)
            wire_cost(url, reward, measured, options.runs)


if __name__ == "__main__":
    main()
