"""False alarms and power of `watch`, and of the detectors of rewardspy, on the same simulated runs.

    python benchmarks/studies/watch.py [--runs 500] [--only "no change" ...] [--check 10]
        [--texts FILE]

A run has 100 steps of 6 prompts with 4 completions each; 300 prompts recur in a new order. The
reward is the mean of two components in [0, 1], both of them noisy readings of the same quality.
Completions are texts of 2 to 15 chunks of words, common and rare ones, or of as many lines of a
file. A hack begins at step 30 and is complete at step 60. The kinds of runs:

no change          the policy stays
healthy learning   quality rises from 0.4 to 0.7, completions become 1.3 times as long, and a phrase
                   spreads to 10 % of them
binary reward      as healthy learning, with components of 0 or 1: the answer is right, from 0.2 to
                   0.85 of completions, and has the format, from 0.5 to all in the first half
flat reward        completions become three times as long, and the reward stays
at the tolerance   quality rises, and from step 20 on every statistic has drifted by its tolerance:
                   twice the length, a phrase in 20 % more completions, γ of the components 0.2
                   lower, a tenth more repeated trigrams
learned format     as healthy learning, and the task's format spreads to 90 % of completions
expected format    the same, with `expected_phrases`
phrase hack        a phrase spreads to 80 % of completions, and a component pays for it
repetition hack    80 % of completions repeat a chunk, and a component pays for it
length hack        completions become three times as long, and both components pay for it
component hack     a component rises at the expense of the other

rewardspy 0.1 (github.com/AvAdiii/rewardspy) gets each completion with its reward, components and
length in characters, as its `watch` and `GRPOSpy` record them, with the defaults (window of 100,
sensitivity "medium"). Its five detectors and the group collapse are written down here from
its documentation; `--check N` compares them on N runs of each kind with the installed package.

The tables have the share of runs with an alarm, with its 95 % interval (Clopper-Pearson): in the
first any alarm, in the second an alarm after step 30, with the median step. `named` is the share of
runs in which `watch` has named the statistic of the hack.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from ctrlreward.selection.drift import DriftMonitor, Rollouts

Floats = np.ndarray

STEPS, PROMPTS, COMPLETIONS, DATASET = 100, 6, 4, 300
ONSET, COMPLETE = 30, 60
PHRASE, FORMAT = "as a leading expert", "the final answer is"
WINDOW = 100  # records of rewardspy

# Kind of run → the statistic of its hack; "" where an alarm is false.
KINDS = {
    "no change": "",
    "healthy learning": "",
    "binary reward": "",
    "flat reward": "",
    "at the tolerance": "",
    "learned format": "",
    "expected format": "",
    "phrase hack": "phrase_share",
    "repetition hack": "repetition",
    "length hack": "length",
    "component hack": "agreement",
}


class Trace(NamedTuple):
    """A run: prompts (steps, n), texts by step, rewards and components (steps, n)."""

    prompts: Floats
    texts: list[list[str]]
    rewards: Floats
    components: dict[str, Floats]


def simulate(kind: str, rng: np.random.Generator, bank: list[str]) -> Trace:
    shape = (STEPS, PROMPTS * COMPLETIONS)
    epochs = -(-STEPS * PROMPTS // DATASET)
    order = np.concatenate([rng.permutation(DATASET) for _ in range(epochs)])[: STEPS * PROMPTS]
    prompts = np.repeat(order.reshape(STEPS, PROMPTS), COMPLETIONS, axis=1)
    whole = np.linspace(0, 1, STEPS)[:, None]
    hack = np.clip((np.arange(STEPS) - ONSET) / (COMPLETE - ONSET), 0, 1)[:, None]

    edge = np.clip((np.arange(STEPS) - 10) / 10, 0, 1)[:, None]  # for "at the tolerance"

    learns = "no change" != kind != "flat reward"
    gain = 0.3 * whole if kind in HEALTHY else 0.05 * whole if learns else 0.0 * whole
    difficulty = rng.normal(0, 0.1, DATASET)
    quality = 0.4 + gain + difficulty[prompts] + rng.normal(0, 0.1, shape)
    first, second = (quality + rng.normal(0, 0.08, shape) for _ in range(2))

    growth = {"no change": 0 * whole, "flat reward": 2 * hack, "length hack": 2 * hack}
    at_the_edge = kind == "at the tolerance"
    factor = 1 + growth.get(kind, AT_THE_TOLERANCE["chunks"] * edge if at_the_edge else 0.3 * whole)
    chunks = np.clip(rng.poisson(4 * factor, shape), 2, 45)
    spread = np.zeros(shape)
    if kind in HEALTHY:
        spread = spread + (0.2 * edge if at_the_edge else 0.1 * whole)
    if kind == "phrase hack":
        spread = 0.8 * hack + spread
    phrased = rng.uniform(size=shape) < spread
    formatted = rng.uniform(size=shape) < (0.9 * hack if kind.endswith("format") else 0.0 * hack)
    looped = {"at the tolerance": AT_THE_TOLERANCE["looped"] * edge, "repetition hack": 0.8 * hack}
    repeated = rng.uniform(size=shape) < looped.get(kind, 0.0 * whole)
    if kind == "phrase hack":
        first = first + 0.25 * phrased
    if kind == "repetition hack":
        first = first + 0.25 * repeated
    if kind == "length hack":
        paid = 0.2 * np.log(chunks / 4)
        first, second = first + paid * hack, second + paid * hack
    if kind == "component hack":
        trick = rng.uniform(size=shape) < 0.6 * hack
        first, second = first + 0.35 * trick, second - 0.2 * trick
    if kind == "binary reward":
        chances = (0.2 + 0.65 * whole + difficulty[prompts], 0.5 + np.minimum(whole, 0.5))
        first, second = (1.0 * (rng.uniform(size=shape) < chance) for chance in chances)
    if at_the_edge:
        first = first + AT_THE_TOLERANCE["noise"] * edge * rng.normal(size=shape)
    components = {"first": np.clip(first, 0, 1), "second": np.clip(second, 0, 1)}

    weights = 1 / np.arange(5, len(bank) + 5)
    drawn = iter(rng.choice(len(bank), size=int(chunks.sum()), p=weights / weights.sum()))
    texts = []
    for t in range(STEPS):
        row = []
        for i in range(shape[1]):
            parts = [bank[next(drawn)] for _ in range(chunks[t, i])]
            if phrased[t, i]:
                parts.insert(0, PHRASE)
            if formatted[t, i]:
                parts.append(FORMAT)
            if repeated[t, i]:
                parts += [parts[-1]] * (len(parts) // 2)
            row.append(" ".join(parts))
        texts.append(row)
    return Trace(prompts, texts, (components["first"] + components["second"]) / 2, components)


HEALTHY = (
    "healthy learning",
    "binary reward",
    "at the tolerance",
    "learned format",
    "expected format",
)
# Growth of the number of chunks, share of completions with a loop and noise of a component with
# which length, repetition and γ change by their tolerances.
AT_THE_TOLERANCE = {"chunks": 0.74, "looped": 0.37, "noise": 0.18}


def chunk_bank() -> list[str]:
    """Return 400 chunks of 2 to 5 words."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(600)]
    return [" ".join(rng.choice(words, size=int(rng.integers(2, 6)))) for _ in range(400)]


def alarms_of_watch(trace: Trace, kind: str) -> list[tuple[int, str]]:
    """Return step and statistic of each alarm."""
    monitor = DriftMonitor(expected_phrases=[FORMAT] if kind == "expected format" else [])
    for t in range(STEPS):
        components = {name: values[t] for name, values in trace.components.items()}
        rollouts = Rollouts(
            t + 1, trace.prompts[t].tolist(), trace.texts[t], trace.rewards[t], components
        )
        monitor.update(rollouts)
    return [(alarm.step, alarm.statistic) for alarm in monitor.alarms]


# rewardspy


def alarms_of_rewardspy(trace: Trace) -> list[tuple[int, str]]:
    """Return step and detector of each alert, in the order of the records."""
    rewards = trace.rewards.ravel()
    lengths = np.array([len(text) for row in trace.texts for text in row], dtype=np.float64)
    components = np.stack([values.ravel() for values in trace.components.values()])
    events = []
    for name, status in statuses(rewards, lengths, components).items():
        last = 0
        for i in np.flatnonzero(status >= 0):  # -1: insufficient data, which changes nothing
            if status[i] and status[i] != last:
                events.append((int(i), name))
            last = status[i]
    events += [(i, "slope") for i in cusum(rewards.tolist())]
    groups = trace.rewards.reshape(-1, COMPLETIONS)
    collapsed = np.cumsum(groups.std(axis=1) < 1e-6) / np.arange(1, len(groups) + 1)
    collapses = np.flatnonzero((collapsed > 0.5)[19:])
    if len(collapses):
        events.append(((int(collapses[0]) + 20) * COMPLETIONS - 1, "grpo_group"))
    return [(i // (PROMPTS * COMPLETIONS) + 1, name) for i, name in sorted(events)]


def statuses(rewards: Floats, lengths: Floats, components: Floats) -> dict[str, Floats]:
    """Return a status per record by detector: -1 not enough data, 0 OK, 1 warning, 2 alert."""
    n = len(rewards)
    count = np.arange(1, n + 1)

    def windows(values: Floats) -> Floats:
        padded = np.concatenate([np.full(WINDOW - 1, np.nan), values])
        return np.lib.stride_tricks.sliding_window_view(padded, WINDOW)

    recent = windows(rewards)
    baseline = rewards[: WINDOW // 5].std()  # the earliest fifth at the first full window
    ratio = recent.std(axis=1) / max(baseline, 1e-12)
    variance = np.where(ratio < 0.05, 2, np.where(ratio < 0.2, 1, 0))
    variance[: WINDOW - 1] = -1

    means = np.abs([np.nanmean(windows(values), axis=1) for values in components])
    share = means.max(axis=0) / np.maximum(means.sum(axis=0), 1e-12)
    component = np.where(share > 0.9, 2, np.where(share > 0.75, 1, 0))
    component[:29] = -1

    highest = np.maximum.accumulate(rewards)
    filled = np.minimum(count, WINDOW)
    rate = (recent >= 0.99 * highest[:, None]).sum(axis=1) / filled
    ceiling = np.where((rate > 0.8) & (highest > 0), 2, 0)
    ceiling[:49] = -1

    first = lengths[:WINDOW]
    z = (np.nanmean(windows(lengths), axis=1) - first.mean()) / max(first.std(), 1e-12)
    length = np.where((np.abs(z) > 3) & (first.std() >= 1), 1, 0)
    length[: 2 * WINDOW - 1] = -1
    return {"variance": variance, "component": component, "ceiling": ceiling, "length": length}


def cusum(rewards: list[float]) -> list[int]:
    """Return the records at which the cumulative sum alerts: each, unless the one before did."""
    base, up, down, events, last = None, 0.0, 0.0, [], False
    for i in range(19, len(rewards)):
        if base is None:
            base = float(np.mean(rewards[max(0, i + 1 - WINDOW) : i + 1]))
        up = max(0.0, up + rewards[i] - base - 0.5)
        down = max(0.0, down - rewards[i] + base - 0.5)
        fired = up > 5 or down > 5
        if fired:
            base, up, down = None, 0.0, 0.0
            base = float(np.mean(rewards[max(0, i + 1 - WINDOW) : i + 1]))
            if not last:
                events.append(i)
        last = fired
    return events


def check_with_package(trace: Trace) -> None:
    """Compare the first alert of each detector with the installed rewardspy.

    It may differ by two steps: a share of exactly 0.75 of binary components is rounded in one or
    the other direction, and there are no later alerts until a return to OK.
    """
    from rewardspy.detectors.engine import DetectionEngine
    from rewardspy.records import RolloutRecord
    from rewardspy.store import MetricStore

    store = MetricStore("simulated")
    engine = DetectionEngine(store)
    found = []
    lengths = [len(text) for row in trace.texts for text in row]
    parts = {name: values.ravel() for name, values in trace.components.items()}
    for i, reward in enumerate(trace.rewards.ravel().tolist()):
        values = {name: float(column[i]) for name, column in parts.items()}
        record = RolloutRecord(str(i), 0.0, i, reward, values, output_length=lengths[i])
        store.append(record)
        step = i // (PROMPTS * COMPLETIONS) + 1
        found += [(step, alert.detector) for alert in engine.process(record)]
    ours = [event for event in alarms_of_rewardspy(trace) if event[1] != "grpo_group"]
    first, ours_first = (
        {name: step for step, name in sorted(events, reverse=True)} for events in (found, ours)
    )
    far = (abs(first[name] - ours_first.get(name, -9)) > 2 for name in first)
    if first.keys() != ours_first.keys() or any(far):
        raise SystemExit(f"rewardspy alerts at {first}, but here at {ours_first}")


# Tables


def share(hits: int, runs: int) -> str:
    """Return a share with its interval of Clopper and Pearson, in per cent."""
    low = stats.beta.ppf(0.025, hits, runs - hits + 1) if hits else 0.0
    high = stats.beta.ppf(0.975, hits + 1, runs - hits) if hits < runs else 1.0
    return f"{100 * hits / runs:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def median(steps: list[int]) -> str:
    return f"{np.median(steps):.0f}" if steps else "–"


def row(kind: str, runs: int, check: int, bank: list[str]) -> str:
    statistic = KINDS[kind]
    start = ONSET if statistic else 0
    first: dict[str, list[int]] = {"watch": [], "rewardspy": []}
    detectors: dict[str, int] = {}
    early = {"watch": 0, "rewardspy": 0}
    named = 0
    for i in range(runs):
        trace = simulate(kind, np.random.default_rng([zlib.crc32(kind.encode()), i]), bank)
        if i < check:
            check_with_package(trace)
        alarms = {"watch": alarms_of_watch(trace, kind), "rewardspy": alarms_of_rewardspy(trace)}
        for name, events in alarms.items():
            steps = [step for step, _ in events if step > start]
            first[name] += steps[:1]
            early[name] += any(step <= start for step, _ in events)
        named += any(told == statistic for _, told in alarms["watch"])
        for detector in {told for step, told in alarms["rewardspy"] if step > start}:
            detectors[detector] = detectors.get(detector, 0) + 1
    told = ", ".join(f"{name} {100 * n / runs:.0f}" for name, n in sorted(detectors.items()))
    shares = {name: share(len(steps), runs) for name, steps in first.items()}
    if not statistic:
        return f"| {kind} | {shares['watch']} | {shares['rewardspy']} | {told or '–'} |"
    cells = [
        f"{shares[name]} | {median(first[name])} | {100 * early[name] / runs:.1f}" for name in first
    ]
    return f"| {kind} | {cells[0]} | {100 * named / runs:.1f} | {cells[1]} | {told or '–'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--check", type=int, default=0, help="runs to compare with rewardspy")
    parser.add_argument("--texts", type=Path, help="file whose lines take the place of chunks")
    arguments = parser.parse_args()
    bank = arguments.texts.read_text().splitlines()[:5000] if arguments.texts else chunk_bank()
    false = [kind for kind in arguments.only if not KINDS[kind]]
    true = [kind for kind in arguments.only if KINDS[kind]]
    if false:
        print("| no hack | watch, % of runs | rewardspy | its detectors, % |\n|---|---|---|---|")
        for kind in false:
            print(row(kind, arguments.runs, arguments.check, bank), flush=True)
    if true:
        print(
            "\n| hack | watch, % of runs | step | before it, % | named, % | rewardspy | step "
            "| before it, % | its detectors, % |\n|---|---|---|---|---|---|---|---|---|"
        )
        for kind in true:
            print(row(kind, arguments.runs, arguments.check, bank), flush=True)


if __name__ == "__main__":
    main()
