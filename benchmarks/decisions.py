"""Error rates of the rules that stop, select and raise an alarm, on simulated runs.

    python benchmarks/decisions.py [--runs 500] [--prompts 32] [--only alarm stop best pareto]

Every prompt has a level of its own, and every validation scores two completions of it. Changes are
in standard deviations of a validation's mean that come from decoding.

alarm   the proxy always rises, so that the held-out score alone decides; 20 validations. Share of
        runs with any alarm, with its 95 % interval (Clopper-Pearson), and the validation at which
        half of the runs have one. False where nothing declines.
stop    share of runs that stop, and that stop before the true score is highest; true score lost
best    true score lost against the best validation that meets the constraint, and share of runs
        whose selection violates it
pareto  share of runs whose front has the truly best validation, and has one that is truly worse
        than another in both metrics

The results are in docs/stopping_and_selection.md.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy import stats

from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule

Floats = np.ndarray
VALIDATIONS, PEAK, BOUND = 20, 7, -5.5
KINDS = ("normal", "heavy tails", "skewed", "binary", "prompts drift")
SHAPES: Mapping[str, Floats] = {
    "flat": np.zeros(VALIDATIONS),
    "falls by 1": -np.arange(VALIDATIONS, dtype=float),
    "rises, then falls by 1": -np.abs(np.arange(VALIDATIONS) - VALIDATIONS // 3).astype(float),
}
CURVES: Mapping[str, Floats] = {
    "flat": np.zeros(VALIDATIONS),
    "rises by 0.5": 0.5 * np.arange(VALIDATIONS),
    "rises by 1 to a peak": -np.abs(np.arange(VALIDATIONS) - PEAK).astype(float),
}


def simulated(rng: np.random.Generator, kind: str, prompts: int, true: Floats) -> Floats:
    """Return scores of one run, shape (validations, prompts), higher is better.

    Heavy tails are Student's t with three degrees of freedom, skewed scores are log-normal.
    """
    two, shift = (len(true), prompts, 2), true[:, None] / np.sqrt(prompts)
    if kind == "binary":  # three of four completions pass; a shift changes the chance
        chance = np.clip(rng.beta(3, 1, size=prompts) + shift * np.sqrt(0.15 / 2), 0, 1)
        return (rng.uniform(size=two) < chance[..., None]).mean(axis=2)
    scale = 1 / np.sqrt(2)
    if kind == "heavy tails":
        noise, scale = rng.standard_t(3, size=two), scale * np.sqrt(3)
    elif kind == "skewed":
        noise, scale = np.exp(rng.normal(size=two)), scale * 2.16
    else:
        noise = rng.normal(size=two)
    scores = rng.normal(size=prompts) + noise.mean(axis=2) + shift * scale
    if kind == "prompts drift":  # each prompt's level is a random walk of its own
        scores += np.cumsum(rng.normal(size=(len(true), prompts)), axis=0)
    return scores


def runs_of(kind: str, true: Floats, options: argparse.Namespace) -> list[Floats]:
    """Return the same runs for each rule."""
    rng = np.random.default_rng(zlib.crc32(f"{kind} {true.tolist()}".encode()))
    return [simulated(rng, kind, options.prompts, true) for _ in range(options.runs)]


def decided(rule: Any, **runs: Floats) -> Iterator[tuple[Any, Any]]:
    """Yield state and decision of a rule after each validation of a run of metrics by name."""
    state = rule.start()
    for k in range(VALIDATIONS):
        evidence = {name: run[k] for name, run in runs.items()}
        means = {name: scores.mean() for name, scores in evidence.items()}
        state, decision = rule.update(state, k, {"proxy": float(k), **means}, evidence=evidence)
        yield state, decision


# Alarms: the scores of a run → whether there is an alarm after each validation.


def rule_alarms(**settings: Any) -> Callable[[Floats], list[bool]]:
    rule = AlarmRule("proxy", "y", **settings)
    return lambda run: [decision.alarm for _, decision in decided(rule, y=run)]


def three_sigma(run: Floats) -> list[bool]:
    error = run[0].std(ddof=1) / np.sqrt(run.shape[1])
    return list(run.mean(axis=1) < run[0].mean() - 3 * error)


def ratio(run: Floats) -> list[bool]:
    first = run[0].mean()
    return list(run.mean(axis=1) < first - 0.1 * abs(first))


def three_in_a_row(run: Floats) -> list[bool]:
    falls = np.diff(run.mean(axis=1)) < 0
    return [False] * 3 + [bool(falls[i : i + 3].all()) for i in range(len(falls) - 2)]


ALARMS: Mapping[str, Callable[[Floats], list[bool]]] = {
    "with its margin": rule_alarms(),
    "without a margin": rule_alarms(margin=0.0),
    "best, without a margin": rule_alarms(margin=0.0, reference="best"),
    "3 sigma": three_sigma,
    "a tenth": ratio,
    "3 in a row": three_in_a_row,
}


def share(hits: int, runs: int) -> str:
    low, high = stats.binomtest(hits, runs).proportion_ci()
    return f"{hits / runs:.1%} ({low:.1%}–{high:.1%})"


def alarm(options: argparse.Namespace) -> None:
    print(f"| scores | held-out score | {' | '.join(ALARMS)} |")
    print("|---" * (2 + len(ALARMS)) + "|")
    for kind in KINDS:
        for shape, true in SHAPES.items():
            runs, cells = runs_of(kind, true, options), []
            for alarms in ALARMS.values():
                found = [alarms(run) for run in runs]
                first = [f.index(True) + 1 if any(f) else VALIDATIONS + 1 for f in found]
                median = int(np.median(first))
                at = f" at {median}" if median <= VALIDATIONS else ""
                cells.append(share(sum(map(any, found)), len(runs)) + at)
            print(f"| {kind} | {shape} | {' | '.join(cells)} |", flush=True)


def stop(options: argparse.Namespace) -> None:
    settings: Mapping[str, Mapping[str, Any]] = {
        "patience 3": {},
        "patience 3, noise": {"min_delta": "noise"},
        "decline alone": {"decline": True, "patience": VALIDATIONS},
    }
    print("| true curve | rule | stops | before the peak | score lost |\n|---|---|---|---|---|")
    for shape, true in CURVES.items():
        runs, peak = runs_of("normal", true, options), int(np.argmax(true))
        for name, given in settings.items():
            rule, stops = StopRule("y", **{"patience": 3, **given}), []
            for run in runs:
                places = [
                    k for k, (_, decision) in enumerate(decided(rule, y=run)) if decision.stop
                ]
                stops.append(min(places, default=VALIDATIONS))
            early = sum(place < peak for place in stops)
            lost = [true.max() - true[: place + 1].max() for place in stops]
            ended = sum(place < VALIDATIONS for place in stops)
            print(
                f"| {shape} | {name} | {share(ended, len(runs))} | {share(early, len(runs))} | "
                f"{np.mean(lost):.2f} |",
                flush=True,
            )


def folded(rule: BestRule | ParetoRule, run: Floats, other: Floats) -> Any:
    """Return the state of a rule after a run of two metrics."""
    *_, (state, _) = decided(rule, y=run, z=other)
    return state


def best(options: argparse.Namespace) -> None:
    print("| true curve | second metric | score lost | violated | none |\n|---|---|---|---|---|")
    rule = BestRule("y", constraints={"z": (BOUND / np.sqrt(options.prompts), None)})
    for shape, true in CURVES.items():
        for falling, second in (("flat", SHAPES["flat"]), ("falls by 1", SHAPES["falls by 1"])):
            allowed = second >= BOUND
            runs, rng = runs_of("normal", true, options), np.random.default_rng(0)
            chosen = []
            for run in runs:
                other = rng.normal(size=run.shape) + second[:, None] / np.sqrt(options.prompts)
                chosen.append(rule.best(folded(rule, run, other)))
            places = np.array([step or 0 for step in chosen])
            lost = true[allowed].max() - true[places]
            print(
                f"| {shape} | {falling} | {lost.mean():.2f} | "
                f"{share(int((~allowed[places]).sum()), len(runs))} | "
                f"{np.mean([step is None for step in chosen]):.1%} |",
                flush=True,
            )


def pareto(options: argparse.Namespace) -> None:
    print("| first metric | second | front has the best | has a dominated one |\n|---|---|---|---|")
    rule, second = ParetoRule({"y": "max", "z": "max"}), SHAPES["falls by 1"]
    for shape, true in CURVES.items():
        runs, others = (runs_of(kind, curve, options) for kind, curve in
                        (("normal", true), ("normal", second)))  # fmt: skip
        worse = [bool(((true > a) & (second > b)).any()) for a, b in zip(true, second, strict=True)]
        fronts = [folded(rule, *pair).kept for pair in zip(runs, others, strict=True)]
        kept = sum(int(np.argmax(true)) in front for front in fronts)
        wrong = sum(any(worse[step] for step in front) for front in fronts)
        print(
            f"| {shape} | falls by 1 | {share(kept, len(runs))} | {share(wrong, len(runs))} |",
            flush=True,
        )


def main() -> None:
    parts = {"alarm": alarm, "stop": stop, "best": best, "pareto": pareto}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    options = parser.parse_args()
    for name in options.only:
        print(f"\n{name}: {options.runs} runs of {VALIDATIONS}, {options.prompts} prompts\n")
        parts[name](options)


if __name__ == "__main__":
    main()
