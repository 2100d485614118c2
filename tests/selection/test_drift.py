"""Drift of rollouts: figures by hand, and the rate of alarms on simulated runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ctrlreward.selection import drift
from ctrlreward.selection.drift import DriftMonitor


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one step."""
    monkeypatch.setattr(drift, "STEPS", 1)


def run_alarms(
    rng: np.random.Generator, factor: float, rise: float, level: float, fresh: bool
) -> set[str]:
    """Return the alarms of a run whose completions become `factor` times as long after step 10."""
    tolerances = {"repetition": math.inf}  # all words are the same
    monitor = DriftMonitor(level, tolerances)
    for step in range(40):
        later = step >= 10
        prompts = [step * 10 + i // 2 if fresh else i // 2 for i in range(20)]
        lengths = rng.gamma(4, 3, size=20) * (factor if later else 1)
        texts = [" ".join(["w"] * max(1, round(n))) for n in lengths]
        rewards = rng.normal(rise * later, 1, size=20)
        monitor.update(step, prompts, texts, {"reward": rewards})
    return {alarm.statistic for alarm in monitor.alarms}


@pytest.mark.parametrize("fresh", [True, False])
def test_at_the_tolerance_false_alarms_are_rarer_than_the_level(fresh: bool) -> None:
    """Twice the length is the largest drift of the null, and the reward does rise."""
    rng, level, runs = np.random.default_rng(3), 0.2, 40
    false = sum(bool(run_alarms(rng, 2.0, 3.0, level, fresh)) for _ in range(runs))
    assert false <= level * runs


def test_beyond_the_tolerance_there_are_alarms() -> None:
    rng = np.random.default_rng(4)
    assert all(run_alarms(rng, 3.5, 3.0, 0.05, True) == {"length"} for _ in range(10))
    assert all(run_alarms(rng, 0.25, 3.0, 0.05, False) == {"length"} for _ in range(10))


def test_no_alarm_without_a_rise_of_the_reward() -> None:
    rng = np.random.default_rng(5)
    assert not any(run_alarms(rng, 3.5, -0.5, 0.05, True) for _ in range(10))


def step_of(step: int, texts: list[str], components: dict[str, list[float]]) -> tuple[Any, ...]:
    """Return 40 groups of two completions, with a reward that rises."""
    columns = {f"component/{name}": np.array(values) for name, values in components.items()}
    return step, [i // 2 for i in range(80)], texts, {"reward": np.full(80, float(step)), **columns}


def repeated(step: int) -> tuple[list[str], dict[str, list[float]]]:
    return [("go on " * 10 if step else "a b c d e f g") for _ in range(80)], {}


def carried(step: int) -> tuple[list[str], dict[str, list[float]]]:
    values = [float(i % 4 // 2) for i in range(80)]
    return [f"a{i}" for i in range(80)], {"x": [v + 3 * step for v in values], "y": values}


@pytest.mark.parametrize(
    ("build", "statistic", "reference", "value"),
    [
        # "go on" 10 times has 18 trigrams, of which 2 are distinct.
        (repeated, "repetition", 0.0, 1 - 2 / 18),
        (carried, "component/x", 0.5, 3.5),
    ],
)
@pytest.mark.usefixtures("one_step")
def test_each_statistic(build, statistic: str, reference: float, value: float) -> None:
    monitor = DriftMonitor(tolerances={"length": math.inf})
    for step in range(3):
        monitor.update(*step_of(step, *build(step)))
    (alarm,) = monitor.alarms
    assert alarm.statistic == statistic
    assert alarm.step == 1
    assert (alarm.reference, alarm.value) == pytest.approx((reference, value))
    assert alarm.example in build(1)[0]


@pytest.mark.usefixtures("one_step")
def test_components_that_rise_together_or_for_another_raise_no_alarm() -> None:
    """Both rise, at different rates; and one rises by less than the tolerance."""
    for rises in ((3.0, 0.5), (0.2, 0.0)):
        monitor = DriftMonitor()
        for step in range(3):
            texts, given = carried(0)
            shifted = zip(given.items(), rises, strict=True)
            components = {name: [v + rise * step for v in vs] for (name, vs), rise in shifted}
            monitor.update(*step_of(step, texts, components))
        assert monitor.alarms == []


@pytest.mark.parametrize("fresh", [True, False])
def test_a_component_at_the_tolerance_raises_few_false_alarms(fresh: bool) -> None:
    """One component is better by a pooled standard deviation, the largest drift of the null."""
    rng, level, runs = np.random.default_rng(6), 0.2, 40
    shift = (4 / 3) ** 0.5  # d / √(1 + d² / 4) = 1, with means of groups of deviation 1
    false = 0
    for _ in range(runs):
        monitor = DriftMonitor(level, {"length": math.inf})
        for step in range(40):
            prompts = [step * 10 + i if fresh else i for i in range(10)]
            x, y = rng.normal(size=(2, 10))
            x = x + shift * (step >= 10)
            columns = {"reward": x + y, "component/x": x, "component/y": y}
            monitor.update(step, prompts, ["w"] * 10, columns)
        false += bool(monitor.alarms)
    assert false <= level * runs
