"""Decisions on four real runs of 40 steps: two whose policy drifts to repetition, two honest ones.

`benchmarks/studies/guards.py` recorded them: `floor-*` with a floor on the likelihood, `range-*`
with bounds on both sides. The expected steps were read off its table.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrlreward.plots.curves import curve
from ctrlreward.selection import BestRule

RUNS = Path(__file__).parent / "recorded"
RELEVANCE, DIVERSITY, PERPLEXITY = (
    f"score/{name}" for name in ("attribute_relevance", "distinct_2", "perplexity")
)
BOUNDS = {DIVERSITY: (0.83, None), PERPLEXITY: (20.0, 36.0)}  # the demo's when it recorded them


def selected(run: str, constraints: dict[str, tuple[float | None, float | None]]) -> int | None:
    history = [json.loads(line) for line in (RUNS / f"{run}.jsonl").read_text().splitlines()]
    keys = (RELEVANCE, DIVERSITY, PERPLEXITY)
    curves = {key: dict(zip(*curve(history, key), strict=True)) for key in keys}
    rule = BestRule(RELEVANCE, constraints=constraints)
    state = rule.start()
    for step in curves[RELEVANCE]:
        state, _ = rule.update(state, step + 1, {key: curves[key][step] for key in keys})
    return rule.best(state)


@pytest.mark.parametrize(
    ("run", "step", "unconstrained"),
    [("floor-0", 15, 35), ("floor-1", 10, 30), ("range-0", 25, 35), ("range-1", 40, 40)],
)
def test_constraints_refuse_the_repetitive_policies(
    run: str, step: int, unconstrained: int
) -> None:
    assert selected(run, BOUNDS) == step
    assert selected(run, {}) == unconstrained
