"""Regret and violated constraints of `BestRule`'s options, on simulated runs with known truth.

    python benchmarks/studies/selection_regret.py [--runs 400] [--prompts 32] [--validations 12]

Three true curves of the selected score, in standard deviations between prompts: it rises by 0.6 and
levels off; it rises by 0.6 and falls back to 0.2; the same while a second metric declines linearly
and passes its bound shortly before the peak. Scores are observed with noise by prompt (standard
deviation 1), the same prompts at each validation. KL grows with the validations and is known
exactly.

regret    best true score of a validation that truly meets the constraint, minus the true score of
          the selected one, also where that one violates the constraint
violated  share of runs whose selected validation violates the constraint truly
none      share of runs that select nothing; they count with the score of the first validation

The results are in docs/decisions.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctrlreward.selection import BestRule

BOUND = -0.5
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "highest mean": {},
    "earliest of ties": {"ties_by": "earliest"},
    "smallest KL of ties": {"ties_by": {"kl": "min"}},
    "unless violated": {"constraint_test": "unless_violated"},
    "if shown": {"constraint_test": "if_shown"},
    "if shown, earliest of ties": {"constraint_test": "if_shown", "ties_by": "earliest"},
}


def truths(shape: str, validations: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the true score and the true constrained metric of each validation."""
    time = np.arange(validations) / (validations - 1)
    rise = 0.6 * (1 - np.exp(-4 * time)) / (1 - np.exp(-4))
    peak = np.where(time < 0.6, time / 0.6, 1 - (time - 0.6) / 0.6) * 0.6
    if shape == "rising":
        return rise, np.zeros(validations)
    return peak, -time if shape == "peaked, constraint violated" else np.zeros(validations)


def select(rng: np.random.Generator, rule: BestRule, score: np.ndarray, other: np.ndarray,
           prompts: int) -> int | None:  # fmt: skip
    """Return the validation that a rule selects in one run."""
    level, second = rng.normal(size=prompts), rng.normal(size=prompts)
    state = rule.start()
    for k in range(len(score)):
        y = score[k] + level + rng.normal(size=prompts)
        z = other[k] + (second + rng.normal(size=prompts)) / 2
        metrics = {"y": y.mean(), "z": z.mean(), "kl": float(k)}
        state, _ = rule.update(state, k, metrics, evidence={"y": y, "z": z})
    return rule.best(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--validations", type=int, default=12)
    options = parser.parse_args()
    print(f"{options.runs} runs, {options.prompts} prompts, {options.validations} validations\n")
    print("| true curve | option | regret | violated | none |\n|---|---|---|---|---|")
    for shape in ("rising", "peaked", "peaked, constraint violated"):
        score, other = truths(shape, options.validations)
        allowed = other >= BOUND
        for name, settings in OPTIONS.items():
            rng = np.random.default_rng(0)  # the same runs for all options
            rule = BestRule("y", constraints={"z": (BOUND, None)}, **settings)
            chosen = [select(rng, rule, score, other, options.prompts) for _ in range(options.runs)]
            places = np.array([step or 0 for step in chosen])
            regret = score[allowed].max() - score[places]
            error = regret.std(ddof=1) / np.sqrt(len(regret))
            none = np.mean([step is None for step in chosen])
            print(
                f"| {shape} | {name} | {regret.mean():.3f} ± {1.96 * error:.3f} | "
                f"{(~allowed[places]).mean():.1%} | {none:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
