"""Losses, compared with loops in plain Python, and advantages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ctrlreward.policy.objectives import loss_terms

LONGEST = 5

aggregations = st.sampled_from(["sequence", "token", "constant", "sum"])
# A token: log-probability now, and under the untuned model.
tokens = st.tuples(st.floats(-4, 0), st.floats(-4, 0))
completions = st.lists(
    st.tuples(st.floats(-3, 3), st.lists(tokens, min_size=4, max_size=4), st.integers(1, 4)),
    min_size=1,
    max_size=5,
)
Completions = list[tuple[float, list[tuple[float, float]], int]]


def tensors(rows: Completions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-probabilities with gradients, those of the reference, advantages and mask."""
    table = torch.tensor([row for _, row, _ in rows], dtype=torch.float64)
    mask = torch.tensor([[float(t < n) for t in range(4)] for _, _, n in rows]).double()
    advantages = torch.tensor([a for a, _, _ in rows], dtype=torch.float64)
    return table[..., 0].clone().requires_grad_(), table[..., 1], advantages, mask


def loss_and_gradient(aggregation: str, rows: Completions, beta: float) -> dict[str, Any]:
    current, *rest = tensors(rows)
    terms = loss_terms(aggregation, current, *rest, LONGEST, beta)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(terms["loss"], current)
    return {**{name: value.item() for name, value in terms.items()}, "gradient": gradient}


def share_of(aggregation: str, rows: Completions, length: int) -> float:
    """Return the weight of a token of a completion of some length in the loss."""
    n, all_tokens = len(rows), sum(each for _, _, each in rows)
    by_name = {"sequence": 1 / length / n, "token": 1 / all_tokens}
    return {**by_name, "constant": 1 / LONGEST / n, "sum": 1 / n}[aggregation]


@settings(max_examples=300)
@given(aggregations, completions, st.sampled_from([0.0, 0.3]))
def test_terms_and_the_gradient_of_the_loss_equal_the_loops(aggregation, rows, beta) -> None:
    terms = dict.fromkeys(["loss", "kl", "entropy"], 0.0)
    slopes = [[0.0] * 4 for _ in rows]
    for i, (advantage, row, length) in enumerate(rows):
        share = share_of(aggregation, rows, length)
        for t, (now, untuned) in enumerate(row[:length]):
            terms["loss"] -= share * advantage * now
            d = untuned - now
            terms["kl"] += (math.exp(d) - 1 - d) / length / len(rows)
            terms["entropy"] -= now / length / len(rows)
            slopes[i][t] = -share * advantage + beta * (1 - math.exp(d)) / length / len(rows)
    terms["loss"] += beta * terms["kl"]
    ours = loss_and_gradient(aggregation, rows, beta)
    gradient = ours.pop("gradient")
    assert ours == pytest.approx(terms, rel=1e-6, abs=1e-6)
    expected = torch.tensor(slopes, dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)
