"""Cost of scoring a corpus on many GPUs: a model, and a simulation that checks it.

    python benchmarks/studies/corpus_cost.py    # all tables, in a minute
    python benchmarks/studies/corpus_rates.py   # the constants of this machine

One process, the driver, reads the rows, hands out shards and writes their scores; workers score one
shard at a time (`ctrlreward score`). A worker that dies loses its shard, which the next free worker
scores again, and comes back after a restart. Times are in seconds, rates per second.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

HOUR = 3600.0
TEXTS, GPUS = 10**9, 64

# Dense bfloat16 operations per second, from the data sheets of the SXM versions.
PEAK = {"A100": 312e12, "H100": 989e12}
UTILISATION = 0.4  # assumed; corpus_rates.py prints that of a CPU
MODELS = {"135M": 135e6, "1B": 1e9, "7B": 7e9}  # parameters
LENGTHS = (64, 256)  # tokens of a text

# Measured by corpus_rates.py on two shared CPU cores.
READ, HANDLING, CHECK_AND_MERGE = 4e-6, 6e-4, 2.5e-5

# Assumed: time around a shard on a worker, start and restart with a model of 7B.
OVERHEAD, STARTUP, RESTART = 0.5, 120.0, 180.0
SPREAD = 0.1  # of the times of shards, relative: texts differ in length


SIZES = (1_000, 10_000, 100_000, 1_000_000)  # texts of a shard
SHOWN = ("7B", 256, 24.0), ("7B", 256, 1000.0), ("135M", 64, 24.0)  # tokens; h between deaths

_FREE, _SCORED, _DIES = range(3)  # events of a worker


@dataclass(frozen=True)
class Job:
    """A corpus, its workers and its driver.

    Attributes:
        texts: Number of texts.
        workers: Number of workers, with one GPU each.
        seconds: Seconds of a worker per text.
        overhead: Seconds of a worker per shard.
        startup: Seconds until a worker begins its first shard.
        death_rate: Deaths of a worker per second, exponential.
        restart: Seconds from a death until the worker's successor begins.
        read: Seconds of the driver per text while workers score.
        handling: Seconds of the driver per shard.
        passes: Seconds of the driver per text before and after scoring.
    """

    texts: float = TEXTS
    workers: int = GPUS
    seconds: float = 1e-3
    overhead: float = OVERHEAD
    startup: float = STARTUP
    death_rate: float = 0.0
    restart: float = RESTART
    read: float = READ
    handling: float = HANDLING
    passes: float = CHECK_AND_MERGE


@dataclass(frozen=True)
class Cost:
    """Time of a job and where it goes.

    Attributes:
        hours: Hours of scoring, from the start of the workers to the last score.
        driver_hours: Hours before and after it, in which no GPU is needed.
        gpu_hours: Hours of scoring times workers.
        lost: Share of the workers' time that deaths cost: half-scored shards and restarts.
        around: Share of the time between deaths that is spent around shards, not on texts.
        start: Share of the hours of scoring that is start-up.
        ended: Expected shards on which three workers die; the first one ends the run.
    """

    hours: float
    driver_hours: float
    gpu_hours: float
    lost: float
    around: float
    start: float
    ended: float


def texts_per_second(parameters: float, tokens: float, peak: float, share: float = 1.0) -> float:
    """Return texts per second of one pass: share · peak / (2 · parameters · tokens)."""
    return share * peak / (2 * parameters * tokens)


def shard_seconds(job: Job, size: float) -> float:
    """Return the expected seconds of a worker per shard, with its deaths.

    A shard takes τ = overhead + size · seconds between deaths, which come at the rate λ. With
    restarts of r seconds, that is (1/λ + r) · (exp(λτ) - 1), or τ (1 + λτ/2 + λr) for small λτ.
    """
    undisturbed = job.overhead + size * job.seconds
    if not job.death_rate:
        return undisturbed
    return (1 / job.death_rate + job.restart) * math.expm1(job.death_rate * undisturbed)


def best_size(job: Job) -> float:
    """Return the texts per shard with the least expected time of the workers.

    Per text, a shard of s texts of t seconds costs o/s around it and λt²s/2 by deaths: the sum is
    least at s = sqrt(2o / λ) / t. This is the interval of checkpoints of Young (1974), a finished
    shard being the checkpoint. Infinite without deaths; the last shards then are what is lost.
    """
    if not job.death_rate:
        return math.inf
    return math.sqrt(2 * job.overhead / job.death_rate) / job.seconds


def expected_cost(job: Job, size: int) -> Cost:
    """Return the expected cost with shards of `size` texts.

    The n shards take n/workers · `shard_seconds` by the workers, or n · (handling + size · read)
    by the driver, whichever is longer; then the start-up, and the end, in which workers wait for
    the last one: half a shard on average, since their ends are spread over a shard's time, and
    half a shard more if one of those in progress is lost.
    """
    shards = math.ceil(job.texts / size)
    undisturbed = job.overhead + size * job.seconds
    by_worker = shard_seconds(job, size)
    fails = -math.expm1(-job.death_rate * job.workers * undisturbed / 2)
    end = undisturbed / 2 * (1 - 1 / job.workers + fails)
    by_driver = job.handling + size * job.read
    scoring = job.startup + max(shards / job.workers * by_worker, shards * by_driver) + end
    dies = -math.expm1(-job.death_rate * undisturbed)
    return Cost(
        hours=scoring / HOUR,
        driver_hours=job.texts * job.passes / HOUR,
        gpu_hours=scoring * job.workers / HOUR,
        lost=1 - undisturbed / by_worker,
        around=job.overhead / undisturbed,
        start=job.startup / scoring,
        ended=shards * dies**3,
    )


def simulated_hours(job: Job, size: int, seed: int) -> float:
    """Return the hours of scoring of one simulated run.

    The driver does one thing at a time, as the command does: it takes the scores of the shard that
    was ready first, writes them, gives that worker the shard that it has read ahead, and reads the
    next. A shard whose worker dies goes to the worker that is free next. Times of shards follow a
    gamma distribution with a relative spread of `SPREAD`.
    """
    generator = np.random.default_rng(seed)
    shards = math.ceil(job.texts / size)
    undisturbed = job.overhead + size * job.seconds
    durations = _draws(generator, undisturbed)
    lives = _exponential(generator, job.death_rate)
    events = [(job.startup, _FREE)] * job.workers  # when, and what: all are in a heap
    unread, again, driver, last = shards, 0, 0.0, 0.0
    idle = done = 0
    while done < shards:
        now, event = heapq.heappop(events)
        if event == _DIES:
            again += 1
            heapq.heappush(events, (now + job.restart, _FREE))
            if idle:
                idle -= 1
                heapq.heappush(events, (now, _FREE))
            continue
        now = max(driver, now)
        if event == _SCORED:
            now = driver = last = now + job.handling
            done += 1
        if again:
            again -= 1
        elif unread:
            unread -= 1
            driver = now + size * job.read
        else:
            idle += 1
            continue
        duration, life = next(durations), next(lives)
        end = (now + life, _DIES) if life < duration else (now + duration, _SCORED)
        heapq.heappush(events, end)
    return last / HOUR


def _draws(generator: np.random.Generator, mean: float) -> Iterator[float]:
    while True:
        yield from generator.gamma(SPREAD**-2, mean * SPREAD**2, 10_000).tolist()


def _exponential(generator: np.random.Generator, rate: float) -> Iterator[float]:
    while True:
        yield from (generator.exponential(1 / rate, 10_000).tolist() if rate else [math.inf])


def job_of(model: str, tokens: int, hours_between_deaths: float) -> Job:
    """Return the job of `TEXTS` texts on `GPUS` H100s."""
    rate = texts_per_second(MODELS[model], tokens, PEAK["H100"], UTILISATION)
    return Job(seconds=1 / rate, death_rate=1 / (hours_between_deaths * HOUR))


def size_table(job: Job, sizes: tuple[int, ...], seeds: int) -> Iterator[str]:
    """Yield the lines of the table of shard sizes, by model and by simulation."""
    yield (
        "| texts per shard | scoring, h | simulated, h (lowest, highest) | GPU-hours "
        "| around shards | lost by deaths | start-up | shards with three deaths |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for size in sizes:
        cost = expected_cost(job, size)
        runs = [simulated_hours(job, size, seed) for seed in range(seeds)]
        yield (
            f"| {size:,} | {cost.hours:.2f} | {np.mean(runs):.2f} ({min(runs):.2f}, "
            f"{max(runs):.2f}) | {cost.gpu_hours:,.0f} | {cost.around:.2%} | {cost.lost:.2%} | "
            f"{cost.start:.2%} | {cost.ended:.1g} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="simulated runs per row")
    options = parser.parse_args()
    for model, tokens, hours in SHOWN:
        job = job_of(model, tokens, hours)
        print(f"\n{model}, {tokens} tokens, a death per {hours:g} h: best {best_size(job):,.0f}")
        print(*size_table(job, SIZES, options.seeds), sep="\n")


if __name__ == "__main__":
    main()
