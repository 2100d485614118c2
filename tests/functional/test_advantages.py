"""Deviations, and equal rewards; `policy/test_objectives.py` has the baselines."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ctrlreward.functional.advantages import (
    batch_baseline_advantages,
    batch_deviation,
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
