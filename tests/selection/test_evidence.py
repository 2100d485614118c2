"""Decisions on scores by prompt: promises, reasons, resumed folds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ctrlreward.functional.sequential import (
    PromptScores,
    level_of_test,
    paired_difference,
    rise_p_value,
)
from ctrlreward.selection import AlarmRule, BestRule, StopDecision, StopRule
from ctrlreward.selection.metrics import direction_of_name

Rule = AlarmRule | BestRule | StopRule


def fold(rule: Rule, rows: list[dict[str, Any]], cut: int | None = None) -> tuple[Any, list[Any]]:
    """Return the last state and all decisions; at `cut`, the state passes through JSON.

    A row has one array of scores by prompt for each key. Keys with a number have none.
    """
    state, decisions = rule.start(), []
    for place, row in enumerate(rows):
        if place == cut:
            state = type(state).from_dict(json.loads(json.dumps(state.to_dict())))
        evidence = {key: scores for key, scores in row.items() if np.ndim(scores)}
        metrics = {key: float(np.nanmean(scores)) for key, scores in row.items()}
        state, decision = rule.update(state, 10 * (place + 1), metrics, evidence=evidence)
        decisions.append(decision)
        if isinstance(decision, StopDecision) and decision.stop:
            break
    return state, decisions


def alarm(rows: list[dict[str, Any]], *held_out: Any, **settings: Any) -> bool:
    """Return whether the last validation raises an alarm."""
    return fold(AlarmRule("proxy", *(held_out or ("y",)), **settings), rows)[0].alarm


def declining(seed: int, slope: float, validations: int = 20, prompts: int = 32) -> list[Any]:
    """Return rows whose held-out mean falls by `slope` standard errors a validation."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=prompts)
    return [
        {
            "proxy": float(k),
            "y": level + rng.normal(size=prompts) - slope * k / np.sqrt(prompts),
        }
        for k in range(validations)
    ]


# Alarm


@pytest.mark.parametrize("reference", ["first", "best"])
def test_a_decline_by_half_a_deviation_a_validation_is_found(reference) -> None:
    rule = AlarmRule("proxy", "y", reference=reference)
    found = [fold(rule, declining(seed, 0.5))[0].alarm_step > 0 for seed in range(8)]
    assert sum(found) >= 7


def test_honest_runs_are_silent() -> None:
    rule = AlarmRule("proxy", "y", margin=0.0)
    alarms = [fold(rule, declining(seed, 0.0, 6, 12))[0].alarm_step > 0 for seed in range(40)]
    assert sum(alarms) <= 5  # at most 2 are expected, more than 5 in 1 % of cases


@pytest.mark.parametrize("mode", ["max", "drift"])
def test_decision_is_the_test_of_the_whole_run(mode: str) -> None:
    rows = declining(0, 1.0, 8)
    proxy = np.random.default_rng(1).normal(size=32)
    rows = [{**row, "proxy": (1 + k / 4) * proxy**2} for k, row in enumerate(rows)]
    rule = AlarmRule("proxy", {"y": mode}, margin=0.1)
    _, decisions = fold(rule, rows)
    first = rows[0]["y"]
    assert decisions[0].p_value == 1.0
    for k, (row, decision) in enumerate(zip(rows[1:], decisions[1:], strict=True), 1):
        falls = [rise_p_value(s * row["y"], s * first, margin=0.1) for s in (1, -1)]
        fall = falls[0] if mode == "max" else 2 * min(falls)
        p_value = max(fall, rise_p_value(rows[0]["proxy"], row["proxy"]))
        assert decision.p_value == pytest.approx(min(1.0, p_value / level_of_test(1.0, k)))
        assert decision.alarm == (p_value <= level_of_test(0.05, k))
    difference = paired_difference(rows[-1]["y"], minus=first, level=level_of_test(0.05, 7))
    assert f"difference {difference.value:+.4f}, {difference.low:+.4f}" in decisions[-1].reason


def test_no_alarm_unless_the_proxy_has_risen() -> None:
    rows = [{**row, "proxy": -row["proxy"]} for row in declining(0, 2.0, 8)]
    assert not any(decision.alarm for decision in fold(AlarmRule("proxy", "y"), rows)[1])
    assert alarm(rows, proxy_mode="min")
    # With scores by prompt, the rise must be shown, too.
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(8, 32))
    unsure = [{**row, "proxy": k} for k, row in zip(noise, rows, strict=True)]
    assert not any(decision.alarm for decision in fold(AlarmRule("proxy", "y"), unsure)[1])


def test_several_held_out_scores_share_the_level() -> None:
    rows = declining(2, 1.0, 8)
    honest = np.random.default_rng(5).normal(size=(8, 3, 32)) / 10
    rows = [
        {**row, "a": more[0], "b": more[1], "c": more[2]}
        for row, more in zip(rows, honest, strict=True)
    ]
    alone = fold(AlarmRule("proxy", "y"), rows)[1]
    state, together = fold(AlarmRule("proxy", ["a", "b", "y", "c"]), rows)
    assert together[-1].p_value == pytest.approx(4 * alone[-1].p_value)
    assert state.alarm
    assert "while y since step 10" in together[-1].reason


def test_drift_is_a_change_in_either_direction() -> None:
    for slope in (-2.0, 2.0):
        rows = declining(3, slope, 10)
        assert alarm(rows, {"y": "drift"})
        assert alarm(rows, held_out_mode="drift")
    assert not alarm(declining(3, -2.0, 10), {"y": "max"})


def test_a_decline_within_the_margin_does_not_matter() -> None:
    rows = declining(4, 1.0, 10)
    assert alarm(rows)
    failed = [{**row, "y": np.append(row["y"], np.nan)} for row in rows]
    assert alarm(failed)  # a prompt that fails has no part in the margin
    assert not alarm(rows, margin=5.0)
    assert not alarm(rows, margin={"y": 5.0})
    # With many prompts a harmless decline is certain, but within a tenth of their spread.
    rng = np.random.default_rng(0)
    level = rng.normal(size=5000)
    later = level - 0.05 + 0.1 * rng.normal(size=5000)
    harmless = [{"proxy": 0.0, "y": level}, {"proxy": 1.0, "y": later}]
    assert not alarm(harmless)
    assert alarm(harmless, margin=0.0)


def test_other_prompts_are_a_new_reference() -> None:
    rows = [*declining(0, 0.0, 2), *declining(0, 3.0, 1, prompts=12)]
    rows = [{**row, "proxy": float(k)} for k, row in enumerate(rows)]
    state, decisions = fold(AlarmRule("proxy", "y"), rows)
    assert decisions[-1].p_value == 1.0
    assert state.references["y"].step == 30


@pytest.mark.parametrize("kind", [AlarmRule, BestRule, StopRule])
def test_as_many_other_prompts_are_not_pairs(kind: Any) -> None:
    """Values of 16 prompts, each a little higher at step 20, of which the prompts are known."""
    first = np.random.default_rng(0).normal(size=16)

    def decided(before: str, after: str) -> tuple[Any, str]:
        rule = kind("proxy", "y") if kind is AlarmRule else kind("y")
        state = rule.start()
        for step, change, prompts in [(10, 0.0, before), (20, 0.01, after)]:
            row = PromptScores(first + change, prompts)
            metrics = {"proxy": float(step), "y": float(row.mean())}
            state = type(state).from_dict(json.loads(json.dumps(state.to_dict())))
            state, decision = rule.update(state, step, metrics, evidence={"y": row})
        return state, rule.explain(state) if kind is BestRule else decision.reason

    _, same = decided("a", "a")
    _, other = decided("a", "b")
    assert decided("", "a")[1] == decided("a", "")[1] == decided("", "")[1] == same
    if kind is AlarmRule:
        assert other == "other held-out prompts: later validations are compared with step 20"
    if kind is BestRule:
        assert same.endswith("at step 20, distinguishable from all others")
        assert other.endswith("(compared by means, not by prompt, with 1 of 1 other candidate)")
    if kind is StopRule:
        assert "improved" in other


# Failed prompts

N = np.nan
EASY_LEFT = [{"y": np.array([4.0, 1, 1, 4] * 4)}, {"y": np.array([3.5, N, N, 3.5] * 4)}]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_mean_that_rises_as_hard_prompts_fail_is_no_improvement(sign: int) -> None:
    mode: Any = "max" if sign > 0 else "min"
    rows = [{"proxy": sign * float(k), "y": sign * row["y"]} for k, row in enumerate(EASY_LEFT)]
    assert sign * np.nanmean(rows[1]["y"]) > sign * np.nanmean(rows[0]["y"])
    best = BestRule("y", mode)
    state, decisions = fold(best, rows, cut=1)
    assert (best.best(state), decisions[1].keep) == (10, False)
    state, stops = fold(StopRule("y", mode, patience=1), rows)
    assert state.stopped_by == "patience_exhausted"
    guard = AlarmRule("proxy", {"y": mode}, mode, reference="best")
    state, alarms = fold(guard, rows)
    assert (state.references["y"].step, state.alarm) == (10, True)
    for decision in (decisions[1], stops[1], alarms[1]):
        assert "8 prompts failed, against 0" in decision.reason
    assert "0 prompts failed, against 8" in best.explain(fold(best, rows)[0])


def test_failures_are_part_of_the_reason_for_a_better_checkpoint() -> None:
    rows = [{"y": np.full(16, 4.0)}, {"y": np.array([5.0, N, N, 5] * 4)}]
    rule = BestRule("y")
    state, decisions = fold(rule, rows)
    assert rule.best(state) == 20
    assert "8 prompts failed, against 0" in decisions[1].reason


@pytest.mark.parametrize("seed", range(12))
def test_decisions_are_those_of_the_prompts_that_both_have(seed: int) -> None:
    """Against the champion and the patience of a loop over pairs of means."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=8) + rng.normal(size=(10, 8)) / 2
    table[rng.random(table.shape) < 0.2] = N
    rows = [{"y": row} for row in table]

    def beats(now: int, before: int) -> bool:
        both = ~np.isnan(table[now]) & ~np.isnan(table[before])
        return table[now][both].mean() > table[before][both].mean()

    champion, waits, most = 0, 0, 0
    for k in range(1, len(rows)):
        champion, waits = (k, 0) if beats(k, champion) else (champion, waits + 1)
        most = max(most, waits)
    rule = BestRule("y")
    assert rule.best(fold(rule, rows)[0]) == 10 * (champion + 1)
    assert rule.best(fold(BestRule("y", top_k=-1), rows)[0]) == 10 * (champion + 1)
    assert fold(StopRule("y", patience=most + 1), rows)[0].stopped_by is None
    assert most == 0 or fold(StopRule("y", patience=most), rows)[0].stopped_by is not None


# Best


def near(best: float, *others: float, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows with these means, and the same noise of 32 prompts up to their order."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=32)
    rows = []
    for mean in (best, *others):
        noise = level + rng.normal(size=32) / 4
        rows.append({"y": noise - noise.mean() + mean})
    return rows


def test_the_selection_is_explained() -> None:
    rule = BestRule("y", constraints={"z": (0.0, None)})
    assert rule.explain(rule.start()) == "no candidate among 0 validations"
    rows = [
        {**row, "z": z} for row, z in zip(near(0.67, 0.64, 0.9, 0.1), (1, 1, -1, 1), strict=True)
    ]
    words = rule.explain(fold(rule, rows)[0])
    refused = "y is 0.6700 at step 10 (a constraint excludes 1 of 4 validations)"
    told = "not distinguishable from 0.6400 at step 20 (difference +0.0300, "
    assert words.startswith(f"{refused}, {told}")
    assert "at step 40" not in words
    assert rule.explain(fold(rule, rows[::2])[0]).endswith(
        "excludes 1 of 2 validations), the only candidate"
    )
    clear = rule.explain(fold(rule, rows[::3])[0])
    assert clear == "y is 0.6700 at step 10, distinguishable from all others"
    means = fold(rule, [{"y": 0.5, "z": 1.0}])[0]
    assert rule.explain(means) == "y is 0.5000 at step 10 (no scores by prompt)"


# Stop


FALLS = near(0.6, 0.7, 0.65, 0.1)
CREEPS = near(*(0.6 + 0.01 * k for k in range(8)))
RISES = near(*(0.6 + 0.6 * k for k in range(8)))
MEANS = [{"y": 0.6}, {"y": 0.61}]  # without scores by prompt, any rise is an improvement


@pytest.mark.parametrize(
    ("rows", "settings", "cause", "step"),
    [
        (FALLS, {"patience": 5}, None, -1),
        (FALLS, {"patience": 5, "decline": True}, "decline_shown", 40),
        (CREEPS, {"patience": 3, "min_delta": 0.5}, "patience_exhausted", 40),
        (CREEPS, {"patience": 2}, None, -1),
        (CREEPS, {"patience": 3, "min_delta": "noise"}, "patience_exhausted", 40),
        (RISES, {"patience": 1, "min_delta": "noise"}, None, -1),
        (MEANS, {"patience": 1, "min_delta": "noise"}, None, -1),
    ],
)
def test_scores_by_prompt_stop_a_run(rows, settings, cause, step) -> None:
    state, decisions = fold(StopRule("y", **settings), rows)
    assert (state.stopped_by, state.stopped_step) == (cause, step)
    if cause == "decline_shown":
        assert decisions[-1].reason.startswith("y is worse than at step 20, difference -0.6")
    lower = [{"y": -row["y"]} for row in rows]
    state, decisions = fold(StopRule("y", "min", **settings), lower)
    assert state.stopped_step == step
    if cause == "decline_shown":  # the score rose
        assert "y is worse than at step 20, difference +0.6" in decisions[-1].reason


# All


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("min", "loss val_loss eval_loss train/loss train_loss_epoch val_loss/dataloader_idx_0"),
        ("max", "reward eval_reward reward/total rewards/perplexity_reward/mean"),
        ("max", "rewards/no_repetition/mean val-core/gsm8k/reward/mean@4 critic/score/mean"),
        (None, "rewards/a/std reward_std critic/rewards/min val-core/a/acc/best@4/std"),
        (None, "rewards/rejected anti_toxicity perplexity accuracy reward/pp closs"),
    ],
)
def test_direction_of_what_trainers_log(mode: str | None, keys: str) -> None:
    assert {direction_of_name(key) for key in keys.split()} == {mode}
