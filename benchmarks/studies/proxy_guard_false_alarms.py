"""False-alarm rate and power of `ProxyGuard` on simulated runs, honest and hacked.

    python benchmarks/studies/proxy_guard_false_alarms.py [--runs 1000] [--validations 20]
        [--window 12]

A run counts if any of its validations raises an alarm. The last column is the usual Mann-Kendall
test (null hypothesis: values in random order) with the same level and window. The results are in
docs/decisions.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

from ctrlreward.functional.trend import rising_p_value
from ctrlreward.selection.alarm import WALK_LEVEL, WINDOW

Floats = np.ndarray
Test = Callable[[Floats], float]
# Number of validations → proxy and held-out metric of one run; higher is better in both.
Curves = Callable[[np.random.Generator, int], tuple[Floats, Floats]]


def noise(rng: np.random.Generator, n: int) -> Floats:
    return rng.normal(size=n)


def walk(rng: np.random.Generator, n: int) -> Floats:
    return np.cumsum(rng.normal(size=n))


def heavy_walk(rng: np.random.Generator, n: int) -> Floats:
    """Return a random walk with steps from Student's t with two degrees of freedom."""
    return np.cumsum(rng.standard_t(2, size=n))


def autocorrelated(rng: np.random.Generator, n: int, rho: float = 0.8) -> Floats:
    """Return a stationary AR(1) process of variance 1."""
    values = rng.normal(size=n)
    for i in range(1, n):
        values[i] = rho * values[i - 1] + np.sqrt(1 - rho**2) * values[i]
    return values


def drifting_on(rng: np.random.Generator, n: int) -> Floats:
    """Return a random walk with autocorrelated steps, which keeps its direction for a while."""
    return np.cumsum(autocorrelated(rng, n, 0.5))


def learning(n: int) -> Floats:
    """Return a curve that rises to 4 standard deviations of the noise and levels off."""
    return 4 * (1 - np.exp(-np.arange(n) / 6))


def hacked(n: int, slope: float) -> Floats:
    """Return a curve that rises for a third of the run, then falls by `slope` per validation."""
    turn = n // 3
    return np.where(np.arange(n) < turn, 1.0, -1.0) * slope * (np.arange(n) - turn)


HONEST: Mapping[str, Curves] = {
    "both independent noise": lambda r, n: (noise(r, n), noise(r, n)),
    "both random walks": lambda r, n: (walk(r, n), walk(r, n)),
    "both autocorrelated (0.8) around a constant": lambda r, n: (
        autocorrelated(r, n),
        autocorrelated(r, n),
    ),
    "both learn, autocorrelated noise": lambda r, n: (
        learning(n) + autocorrelated(r, n),
        learning(n) + autocorrelated(r, n),
    ),
    "proxy always rises, held-out constant with noise": lambda r, n: (np.arange(n), noise(r, n)),
    "proxy always rises, held-out autocorrelated (0.8)": lambda r, n: (
        np.arange(n),
        autocorrelated(r, n),
    ),
    "proxy always rises, held-out a random walk": lambda r, n: (np.arange(n), walk(r, n)),
    "proxy always rises, held-out a heavy-tailed walk": lambda r, n: (
        np.arange(n),
        heavy_walk(r, n),
    ),
}
# Cannot be distinguished from a decline within so few validations: no rate is promised.
UNPROMISED: Mapping[str, Curves] = {
    "proxy always rises, held-out a walk with autocorrelated steps": lambda r, n: (
        np.arange(n),
        drifting_on(r, n),
    ),
}
HACKED: Mapping[str, Curves] = {
    f"held-out turns, then falls {slope} standard deviations per validation": (
        lambda r, n, slope=slope: (np.arange(n) + noise(r, n) / 4, hacked(n, slope) + noise(r, n))
    )
    for slope in (0.5, 1, 2, 4)
}


def usual_p_value(values: Floats) -> float:
    """Return the p-value of the Mann-Kendall test, whose null is values in random order."""
    return stats.kendalltau(np.arange(len(values)), values, alternative="greater").pvalue


def alarm_rate(
    curves: Curves,
    runs: int,
    validations: int,
    window: int = WINDOW,
    level: float = WALK_LEVEL,
    seed: int = 0,
    rising: Test = rising_p_value,
) -> float:
    """Return the share of runs with an alarm after any of their validations."""
    rng = np.random.default_rng(seed)
    alarms = 0
    for _ in range(runs):
        proxy, held_out = curves(rng, validations)
        windows = (slice(max(0, end - window), end) for end in range(2, validations + 1))
        # The larger p-value decides, so the second is computed only if the first is small.
        alarms += any(
            rising(-held_out[recent]) <= level and rising(proxy[recent]) <= level
            for recent in windows
        )
    return alarms / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--validations", type=int, default=20)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--level", type=float, default=WALK_LEVEL)
    options = parser.parse_args()
    print(f"{options.runs} runs of {options.validations} validations, window {options.window}, "
          f"level {options.level}\n")  # fmt: skip
    print("| curves | runs with an alarm | usual Mann-Kendall |\n|---|---|---|")
    for name, curves in {**HONEST, **UNPROMISED, **HACKED}.items():
        arguments = (curves, options.runs, options.validations, options.window, options.level)
        ours, usual = alarm_rate(*arguments), alarm_rate(*arguments, rising=usual_p_value)
        print(f"| {name} | {ours:.1%} | {usual:.1%} |", flush=True)


if __name__ == "__main__":
    main()
