from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ctrlreward.functional.advantages import (
    batch_deviation,
    group_centred_advantages,
    group_deviation,
    self_critical_advantages,
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
def test_group_centred(rows: Rows) -> None:
    expected = [
        0.0 if math.isnan(reward) else reward - statistics.fmean(valid_of(rows, group))
        for reward, group in rows
    ]
    found = group_centred_advantages(*columns(rows))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


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
    found = self_critical_advantages(*columns(rows), torch.tensor(greedy, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
