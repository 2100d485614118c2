"""Drift of rollouts: figures by hand, and the rate of alarms on simulated runs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from ctrlreward.functional.agreement import concordance
from ctrlreward.selection.drift import DriftMonitor, Rollouts, count_trigrams, spread_phrase

WORDS = [f"w{i}" for i in range(200)]


def run_alarms(
    rng: np.random.Generator, factor: float, rise: float, level: float, fresh: bool
) -> set[str]:
    """Return the alarms of a run whose completions become `factor` times as long after step 5."""
    tolerances = {"repetition": math.inf}  # all words are the same
    monitor = DriftMonitor(reference_steps=5, level=level, tolerances=tolerances)
    for step in range(20):
        later = step >= 5
        prompts = [step * 10 + i // 2 if fresh else i // 2 for i in range(20)]
        lengths = rng.gamma(4, 3, size=20) * (factor if later else 1)
        texts = [" ".join(["w"] * max(1, round(n))) for n in lengths]
        rewards = rng.normal(rise * later, 1, size=20)
        monitor.update(Rollouts(step, prompts, texts, rewards, {}))
    return {alarm.statistic for alarm in monitor.alarms}


@pytest.mark.parametrize("fresh", [True, False])
def test_at_the_tolerance_false_alarms_are_rarer_than_the_level(fresh: bool) -> None:
    """Twice the length is the largest drift of the null, and the reward does rise."""
    rng, level, runs = np.random.default_rng(3), 0.2, 60
    false = sum(bool(run_alarms(rng, 2.0, 3.0, level, fresh)) for _ in range(runs))
    assert false <= level * runs


def test_beyond_the_tolerance_there_are_alarms() -> None:
    rng = np.random.default_rng(4)
    assert all(run_alarms(rng, 3.5, 3.0, 0.05, True) == {"length"} for _ in range(10))
    assert all(run_alarms(rng, 0.25, 3.0, 0.05, False) == {"length"} for _ in range(10))


def test_no_alarm_without_a_rise_of_the_reward() -> None:
    rng = np.random.default_rng(5)
    assert not any(run_alarms(rng, 3.5, -0.5, 0.05, True) for _ in range(10))


def rollouts(step: int, texts: list[str], components: dict[str, list[float]]) -> Rollouts:
    """Return 40 groups of two completions, with a reward that rises."""
    columns = {name: np.array(values) for name, values in components.items()}
    return Rollouts(step, [i // 2 for i in range(80)], texts, np.full(80, float(step)), columns)


def repeated(step: int) -> tuple[list[str], dict[str, list[float]]]:
    return [("go on " * 10 if step else "a b c d e f g") for _ in range(80)], {}


def phrased(step: int) -> tuple[list[str], dict[str, list[float]]]:
    return [f"a{i} b{i} {'in my expert view' if step else f'c{i} d{i}'}" for i in range(80)], {}


def opposed(step: int) -> tuple[list[str], dict[str, list[float]]]:
    up = [float(i % 2) for i in range(80)]
    return [f"a{i}" for i in range(80)], {"x": up, "y": [-v for v in up] if step else up}


@pytest.mark.parametrize(
    ("build", "statistic", "reference", "value"),
    [
        # "go on" 10 times has 18 trigrams, of which 2 are distinct.
        (repeated, "repetition", 0.0, 1 - 2 / 18),
        (phrased, "phrase_share", 0.0, 1.0),
        (opposed, "agreement", 1.0, -1.0),
    ],
)
def test_each_statistic(build, statistic: str, reference: float, value: float) -> None:
    tolerances = {"length": math.inf, "phrase_share": math.inf}
    if statistic == "phrase_share":
        del tolerances["phrase_share"]
    monitor = DriftMonitor(reference_steps=1, tolerances=tolerances)
    metrics = [monitor.update(rollouts(step, *build(step)))[0] for step in range(3)]
    (alarm,) = monitor.alarms
    assert alarm.statistic == statistic
    assert alarm.step == 1
    assert (alarm.reference, alarm.value) == pytest.approx((reference, value))
    assert alarm.example in build(1)[0]
    assert metrics[2][statistic] == pytest.approx(value)
    assert alarm.phrase == ("in my expert view" if statistic == "phrase_share" else "")


def test_expected_phrases_raise_no_alarm() -> None:
    monitor = DriftMonitor(reference_steps=1, expected_phrases=["In my expert view"])
    for step in range(3):
        monitor.update(rollouts(step, *phrased(step)))
    assert monitor.alarms == []
    assert monitor.phrase == ""


def test_prompts_are_matched_where_they_recur() -> None:
    """Each prompt has its own length, and a block has them in another order."""
    monitor = DriftMonitor(reference_steps=1, tolerances={"length": 1.05})
    order = np.arange(40)
    for step in range(4):
        texts = [" ".join(["w"] * (5 + 5 * int(i) + (i > 0 and step > 0))) for i in order]
        values = np.full(40, float(step))
        monitor.update(Rollouts(step, order.tolist(), texts, values, {}))
        order = np.random.default_rng(step).permutation(40)
    # Every prompt but one is a word longer, 1.3 % on average: paired at random it would be noise.
    assert monitor.alarms == []
    tested = DriftMonitor(reference_steps=1, tolerances={"length": 1.0})
    for step in range(2):
        texts = [" ".join(["w"] * (5 + 5 * int(i) + step)) for i in order]
        tested.update(Rollouts(step, order.tolist(), texts, np.full(40, float(step)), {}))
        order = order[::-1]
    assert [alarm.statistic for alarm in tested.alarms] == ["length"]


def test_failed_rewards_are_left_out() -> None:
    monitor = DriftMonitor(reference_steps=1)
    texts, rewards = ["a b"] * 4, np.array([1.0, np.nan, np.nan, np.nan])
    metrics, _ = monitor.update(Rollouts(1, ["p", "p", "q", "q"], texts, rewards, {}))
    assert math.isnan(metrics["groups_without_signal"])  # no group has two rewards


def test_spread_phrase_against_counting_all_phrases() -> None:
    """The growth of the chosen phrase is near the best of all phrases of 3 words."""
    rng = np.random.default_rng(0)
    chunks = [" ".join(rng.choice(WORDS[:30], size=3)) for _ in range(20)]
    before, after = (
        [f" {' '.join(rng.choice(chunks, size=4, p=p))} " for _ in range(60)]
        for p in (np.full(20, 0.05), np.array([0.24] + [0.04] * 19))
    )

    def shares(texts: list[str]) -> Counter[str]:
        found: Counter[str] = Counter()
        for text in texts:
            words = text.split()
            found.update({" ".join(words[i : i + 3]) for i in range(len(words) - 2)})
        return found

    old, new = shares(before), shares(after)
    growth = {phrase: (count - old[phrase]) / 60 for phrase, count in new.items()}
    phrase = spread_phrase(before, after, count_trigrams(before))
    assert max(growth, key=lambda each: growth[each]) in phrase


def test_concordance_against_pairs_in_a_loop() -> None:
    rng = np.random.default_rng(1)
    table = rng.integers(0, 3, size=(3, 9)).astype(float)
    table[1, 4] = np.nan
    kept = [i for i in range(9) if i != 4]
    agreed = opposite = 0
    for a in range(3):
        for b in range(a):
            for i in kept:
                for j in range(i):
                    if j in kept:
                        product = (table[a, i] - table[a, j]) * (table[b, i] - table[b, j])
                        agreed += product > 0
                        opposite += product < 0
    assert concordance(table) == pytest.approx((agreed - opposite) / (agreed + opposite))
    assert math.isnan(concordance([[1.0, 1.0], [1.0, 2.0]]))
