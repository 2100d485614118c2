"""Baselines, deviations and decoupled rewards, compared with loops in plain Python."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ctrlreward.functional.advantages import (
    batch_baseline_advantages,
    batch_deviation,
    decoupled_rewards,
    group_centred_advantages,
    group_deviation,
    leave_one_out_advantages,
)

NAN = math.nan
Rows = list[tuple[float, int]]

rewards = st.one_of(st.floats(-10, 10), st.just(NAN))
rated = st.lists(st.tuples(rewards, st.sampled_from([2, 0, 1])), min_size=1, max_size=9)


def columns(rows: Rows) -> tuple[Tensor, Tensor]:
    values, groups = zip(*rows, strict=True)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(groups)


def valid_of(rows: Rows, group: int) -> list[float]:
    return [reward for reward, other in rows if other == group and not math.isnan(reward)]


def spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


@given(rated)
def test_deviations(rows: Rows) -> None:
    within = [spread(valid_of(rows, group)) for _, group in rows]
    whole = spread([reward for reward, _ in rows if not math.isnan(reward)])
    assert group_deviation(*columns(rows)).tolist() == pytest.approx(within, abs=1e-6)
    assert batch_deviation(*columns(rows)).tolist() == pytest.approx([whole] * len(rows), abs=1e-6)


@given(rated)
def test_baselines(rows: Rows) -> None:
    every = [reward for reward, _ in rows if not math.isnan(reward)]
    expected: dict[Any, list[float]] = {
        group_centred_advantages: [],
        leave_one_out_advantages: [],
        batch_baseline_advantages: [],
    }
    for i, (reward, group) in enumerate(rows):
        rest = valid_of(rows[:i] + rows[i + 1 :], group)
        failed = math.isnan(reward)
        means = (
            math.nan if failed else statistics.fmean(valid_of(rows, group)),
            statistics.fmean(rest) if rest else reward,
            math.nan if failed else statistics.fmean(every),
        )
        for values, mean in zip(expected.values(), means, strict=True):
            values.append(0.0 if failed else reward - mean)
    for formula, values in expected.items():
        assert formula(*columns(rows)).tolist() == pytest.approx(values, abs=1e-6)


WEIGHTS = (1.0, 0.5)
quarters = st.one_of(st.integers(-8, 8).map(lambda k: k / 4), st.just(NAN))


@given(st.lists(st.tuples(st.integers(0, 2), quarters, quarters), min_size=1, max_size=9))
def test_decoupled_rewards(rows: list[tuple[int, float, float]]) -> None:
    expected = []
    for group, *row in rows:
        mine = [r for g, *r in rows if g == group and not any(map(math.isnan, r))]
        if any(map(math.isnan, row)):
            expected.append(NAN)
            continue
        total = 0.0
        for value, weight, column in zip(row, WEIGHTS, zip(*mine, strict=True), strict=True):
            total += weight * (value - statistics.fmean(column)) / (spread([*column]) + 1e-4)
        expected.append(total)
    table = torch.tensor([row for _, *row in rows], dtype=torch.float64)
    groups = torch.tensor([group for group, *_ in rows])
    found = decoupled_rewards(table, torch.tensor(WEIGHTS, dtype=torch.float64), groups)
    assert found.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("value", [0.7, -1e13 / 3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_have_advantage_0(value: float, dtype: torch.dtype) -> None:
    rewards = torch.tensor([value] * 7 + [NAN], dtype=dtype)
    groups = torch.zeros(8, dtype=torch.long)
    for formula in (
        group_centred_advantages,
        leave_one_out_advantages,
        batch_baseline_advantages,
        group_deviation,
        batch_deviation,
    ):
        assert not formula(rewards, groups).any()
