"""False alarms and power of rules that watch a held-out score, on simulated runs.

    python benchmarks/studies/alarms.py [--runs 2000] [--only false power] [--prompts 12 32 200]
        [--validations 8 20 200] [--kinds normal binary]

Every prompt has a level of its own, and every validation scores two completions of it. The proxy
always rises, so that the held-out score alone decides. `ours` is the test of `AlarmRule`: flips of
signs against the first validation, or against the best so far. Others, on the same runs:

t            paired t against the first validation, at the same levels
betting      capital of a bet on the sign of bounded differences (Waudby-Smith and Ramdas 2024, eq.
24,
             predictable plug-in), at the same levels; needs scores with known bounds
halves       best so far by one half of the prompts, tested on the other half
random walk  the test of the trend of means that `AlarmRule` uses without scores by prompt
3 sigma      the mean is 3 standard errors below the first validation's
ratio        the mean has lost a tenth of the first validation's
Mann-Kendall trend of the last 12 means, values in random order, level 0.01
CUSUM        of standardised means, allowance 0.5, limit 5
3 in a row   three declines of the mean in a row

The table of false alarms has the share of runs with any alarm, with its 95 % interval
(Clopper-Pearson), where nothing declines. The table of power has the share of runs in which a
decline is found, and the validation at which half of the runs have found it. The results are in
docs/decisions.md.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import stats

from ctrlreward.functional.sequential import level_of_test, rise_p_value
from ctrlreward.functional.trend import rising_p_value
from ctrlreward.selection.alarm import LEVEL, MARGIN, WALK_LEVEL, WINDOW
from ctrlreward.selection.metrics import chosen_level

Floats = np.ndarray
NEVER = 10**9


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(size=shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_t(3, size=shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return np.exp(rng.normal(size=shape))


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "normal": normal,
    "heavy tails": heavy,
    "skewed": skewed,
}


def validations_of(
    rng: np.random.Generator, kind: str, prompts: int, validations: int, decline: Floats
) -> Floats:
    """Return scores of one run, higher is better, shape (validations, prompts).

    Heavy tails are Student's t with three degrees of freedom, skewed scores are log-normal.
    `decline` is in standard deviations of a validation's mean that come from decoding, shape
    (validations,).
    """
    two = (validations, prompts, 2)
    shift = decline[:, None] / np.sqrt(prompts)
    if kind == "binary":  # three of four completions pass; a shift lowers the chance
        chance = np.clip(rng.beta(3, 1, size=prompts) - shift * np.sqrt(0.15 / 2), 0, 1)
        return (rng.uniform(size=two) < chance[..., None]).mean(axis=2)
    if kind == "correlated":  # the two completions of a validation share most of their noise
        shared = rng.normal(size=(validations, prompts, 1))
        noise = (np.sqrt(0.8) * shared + np.sqrt(0.2) * rng.normal(size=two)).mean(axis=2)
        scale = np.sqrt(0.9)
    elif kind == "prompts drift":  # each prompt's level is a random walk of its own
        walk = np.cumsum(rng.normal(size=(validations, prompts)), axis=0)
        noise, scale = walk + rng.normal(size=two).mean(axis=2), 1.0
    else:
        draw = SHAPES[kind]
        noise = draw(rng, two).mean(axis=2)
        scale = {"normal": 1.0, "heavy tails": np.sqrt(3), "skewed": 2.16}[kind] / np.sqrt(2)
    return rng.normal(size=prompts) + noise - shift * scale


def first_alarm(alarms: list[bool] | Floats) -> int:
    """Return the validation of the first alarm, from 2 on; `NEVER` if there is none."""
    places = np.flatnonzero(alarms)
    return int(places[0]) + 2 if len(places) else NEVER


@cache
def far(share: float, prompts: int) -> float:
    """Return the t below which flips of signs are too far from the level to be counted."""
    return float(stats.t.isf(min(0.5, 100 * share), prompts - 1))


def sign_flips(run: Floats, margin: float, reference: str) -> int:
    """Return the first alarm of `AlarmRule`'s test."""
    means, best = run.mean(axis=1), 0
    for k in range(1, len(run)):
        share = chosen_level(LEVEL, k) if reference == "best" else level_of_test(LEVEL, k)
        if declines(run[best], run[k], margin * run[best].std(ddof=1), share):
            return k + 1
        if reference == "best" and means[k] > means[best]:
            best = k
    return NEVER


def declines(before: Floats, after: Floats, margin: float, share: float) -> bool:
    difference = before - after - margin
    error = np.sqrt(difference.var(ddof=1) / len(difference))
    if difference.mean() < far(share, len(before)) * error or not difference.any():
        return False
    return rise_p_value(after, before, margin) <= share


def paired_t(run: Floats) -> int:
    k = np.arange(1, len(run))
    difference = run[0] - run[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = difference.mean(axis=1) / difference.std(axis=1, ddof=1) * np.sqrt(run.shape[1])
    levels = np.array([level_of_test(LEVEL, int(i)) for i in k])
    return first_alarm(stats.t.sf(np.nan_to_num(t), run.shape[1] - 1) <= levels)


def betting(run: Floats) -> int:
    """Return the first alarm of a bet, for scores in [0, 1]."""
    for k in range(1, len(run)):
        values = (run[0] - run[k] + 1) / 2  # in [0, 1], 0.5 without a decline
        level = level_of_test(LEVEL, k)
        seen = np.arange(1, len(values) + 1)
        means = (0.5 + np.cumsum(values)) / (seen + 1)
        variances = (0.25 + np.cumsum((values - means) ** 2)) / (seen + 1)
        before = np.concatenate([[0.25], variances[:-1]])
        bets = np.minimum(1.0, np.sqrt(2 * np.log(1 / level) / (before * len(values))))
        if np.cumprod(1 + bets * (values - 0.5)).max() >= 1 / level:
            return k + 1
    return NEVER


def halves(run: Floats) -> int:
    """Return the first alarm against the best of the even prompts, on the odd ones."""
    means, best = run[:, ::2].mean(axis=1), 0
    for k in range(1, len(run)):
        if declines(run[best, 1::2], run[k, 1::2], 0.0, level_of_test(LEVEL, k)):
            return k + 1
        if means[k] > means[best]:
            best = k
    return NEVER


def random_walk(run: Floats) -> int:
    means = -run.mean(axis=1)
    windows = (means[max(0, end - WINDOW) : end] for end in range(2, len(means) + 1))
    return first_alarm([rising_p_value(window) <= WALK_LEVEL for window in windows])


def three_sigma(run: Floats) -> int:
    error = run[0].std(ddof=1) / np.sqrt(run.shape[1])
    return first_alarm(run[1:].mean(axis=1) < run[0].mean() - 3 * error)


def ratio(run: Floats) -> int:
    first = run[0].mean()
    return first_alarm(run[1:].mean(axis=1) < first - 0.1 * abs(first))


def mann_kendall(run: Floats) -> int:
    means = run.mean(axis=1)
    return first_alarm(
        [
            stats.kendalltau(np.arange(end)[-WINDOW:], means[max(0, end - WINDOW) : end],
                             alternative="less").pvalue <= 0.01
            for end in range(2, len(means) + 1)
        ]
    )  # fmt: skip


def cusum(run: Floats) -> int:
    means = run.mean(axis=1)
    error = run[0].std(ddof=1) / np.sqrt(run.shape[1])
    total, alarms = 0.0, []
    for mean in means[1:]:
        total = max(0.0, total + (means[0] - mean) / error - 0.5)
        alarms.append(total > 5)
    return first_alarm(alarms)


def three_in_a_row(run: Floats) -> int:
    falls = np.diff(run.mean(axis=1)) < 0
    return first_alarm([bool(falls[max(0, i - 2) : i + 1].sum() == 3) for i in range(len(falls))])


RULES: dict[str, Callable[[Floats], int]] = {
    "ours, first": lambda run: sign_flips(run, MARGIN, "first"),
    "ours, best": lambda run: sign_flips(run, MARGIN, "best"),
    "ours, first, no margin": lambda run: sign_flips(run, 0.0, "first"),
    "ours, best, no margin": lambda run: sign_flips(run, 0.0, "best"),
    "halves": halves,
    "t": paired_t,
    "betting": betting,
    "random walk": random_walk,
    "3 sigma": three_sigma,
    "ratio": ratio,
    "Mann-Kendall": mann_kendall,
    "CUSUM": cusum,
    "3 in a row": three_in_a_row,
}
SLOW = ("random walk", "Mann-Kendall", "betting", "CUSUM")
KINDS = ("normal", "heavy tails", "skewed", "binary", "correlated", "prompts drift")


def alarms_of(
    kind: str, prompts: int, decline: Floats, runs: int, rules: list[str]
) -> dict[str, Floats]:
    """Return the first alarm of each rule in each run."""
    rng = np.random.default_rng(zlib.crc32(f"{kind} {prompts} {len(decline)}".encode()))
    found: dict[str, list[int]] = {rule: [] for rule in rules}
    for _ in range(runs):
        run = validations_of(rng, kind, prompts, len(decline), decline)
        for rule in rules:
            if rule != "betting" or kind == "binary":
                found[rule].append(RULES[rule](run))
    return {rule: np.array(firsts) for rule, firsts in found.items() if firsts}


def falling(validations: int, slope: float) -> Floats:
    """Return a decline that starts at the first validation."""
    return slope * np.arange(validations, dtype=np.float64)


def turning(validations: int, slope: float) -> Floats:
    """Return a rise for a third of the run, then a decline."""
    turn = validations // 3
    return slope * (np.abs(np.arange(validations) - turn) - turn).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=["false", "power"], default=["false", "power"])
    parser.add_argument("--prompts", type=int, nargs="+", default=[12, 32, 200])
    parser.add_argument("--validations", type=int, nargs="+", default=[8, 20, 200])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    runs = options.runs
    if "false" in options.only:
        rules = [rule for rule in RULES if rule not in SLOW]
        print(
            f"False alarms, {runs} runs\n\n| scores | prompts | validations | {' | '.join(rules)} |"
        )
        print("|---" * (3 + len(rules)) + "|")
        for kind in options.kinds:
            for prompts in options.prompts:
                for validations in options.validations:
                    firsts = alarms_of(kind, prompts, np.zeros(validations), runs, rules)
                    print(
                        f"| {kind} | {prompts} | {validations} | {shares(firsts, rules)} |",
                        flush=True,
                    )
    if "power" in options.only:
        rules = list(RULES)
        print(f"\nPower with 32 prompts and 20 validations, {runs} runs\n")
        print(f"| scores | decline | {' | '.join(rules)} |")
        print("|---" * (2 + len(rules)) + "|")
        for kind in options.kinds:
            for name, shape in (("from the first", falling), ("after a rise", turning)):
                for slope in (0.0, 0.5, 1.0):
                    if slope == 0.0 and shape is turning:
                        continue
                    firsts = alarms_of(kind, 32, shape(20, slope), runs, rules)
                    print(f"| {kind} | {slope} {name} | {powers(firsts, rules)} |", flush=True)


def shares(firsts: dict[str, Floats], rules: list[str]) -> str:
    cells = []
    for rule in rules:
        hits, runs = int((firsts[rule] < NEVER).sum()), len(firsts[rule])
        low, high = stats.binomtest(hits, runs).proportion_ci()
        cells.append(f"{hits / runs:.1%} ({low:.1%}–{high:.1%})")
    return " | ".join(cells)


def powers(firsts: dict[str, Floats], rules: list[str]) -> str:
    cells = []
    for rule in rules:
        if rule not in firsts:
            cells.append("")
            continue
        found = (firsts[rule] < NEVER).mean()
        median = int(np.median(firsts[rule]))
        cells.append(f"{found:.1%}" + (f" at {median}" if median < NEVER else ""))
    return " | ".join(cells)


if __name__ == "__main__":
    main()
