"""Deviations and advantages of tokens; `policy/test_objectives.py` has the baselines."""

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
    generalised_advantages,
    group_centred_advantages,
    group_deviation,
    leave_one_out_advantages,
    rewards_at_end,
    self_critical_advantages,
    whitened,
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


@given(rated, st.lists(rewards, min_size=3, max_size=3))
def test_self_critical(rows: Rows, greedy: list[float]) -> None:
    differences = [reward - greedy[group] for reward, group in rows]
    expected = [0.0 if math.isnan(d) else d for d in differences]
    result = self_critical_advantages(*columns(rows), torch.tensor(greedy, dtype=torch.float64))
    assert result.tolist() == pytest.approx(expected, abs=1e-6)


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


# Of tokens

shares = st.sampled_from([0.0, 0.3, 0.95, 1.0])
# A completion: each token's reward and value, and how many tokens there are.
written = st.lists(
    st.tuples(
        st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=4, max_size=4),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=4,
)
Written = list[tuple[list[tuple[float, float]], int]]


def tables(rows: Written) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards, values and mask."""
    table = torch.tensor([row for row, _ in rows], dtype=torch.float64)
    mask = torch.tensor([[float(t < n) for t in range(4)] for _, n in rows]).double()
    return table[..., 0], table[..., 1], mask


def assert_close(result: Tensor, expected: list[list[float]]) -> None:
    target = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(result, target, rtol=0, atol=1e-6)


@given(written, shares, shares)
def test_generalised_advantages_are_discounted_sums_of_td_errors(rows, gamma, lam) -> None:
    expected = []
    for row, length in rows:
        errors = [
            row[t][0] + (gamma * row[t + 1][1] if t + 1 < length else 0.0) - row[t][1]
            for t in range(length)
        ]
        sums = [
            sum((gamma * lam) ** k * error for k, error in enumerate(errors[t:]))
            for t in range(length)
        ]
        expected.append(sums + [0.0] * (4 - length))
    assert_close(generalised_advantages(*tables(rows), gamma, lam), expected)


@given(written)
def test_the_reward_is_given_at_the_last_token(rows: Written) -> None:
    *_, mask = tables(rows)
    rewards = torch.arange(1.0, len(rows) + 1)
    expected = [
        [reward if t == length - 1 else 0.0 for t in range(4)]
        for reward, (_, length) in zip(rewards.tolist(), rows, strict=True)
    ]
    assert rewards_at_end(rewards, mask).tolist() == expected


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=4, max_size=4))
def test_whitened(row: list[tuple[float, bool]]) -> None:
    kept = [value for value, is_kept in row if is_kept]
    expected = [
        (value - statistics.fmean(kept)) / (spread(kept) + 1e-4) if is_kept else 0.0
        for value, is_kept in row
    ]
    values = torch.tensor([value for value, _ in row], dtype=torch.float64).reshape(2, 2)
    mask = torch.tensor([float(is_kept) for _, is_kept in row]).double().reshape(2, 2)
    assert whitened(values, mask).flatten().tolist() == pytest.approx(expected, abs=1e-6)
