"""Parts of the losses; `policy/test_objectives.py` compares whole losses with loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ctrlreward.functional.policy import (
    clipped_surrogate,
    completion_mask,
    constant_weights,
    explained_variance,
    is_clipped,
    kl_estimate,
    score_function,
    sequence_mean,
    sequence_weights,
    token_ratio,
    value_loss,
)

# Losses

tokens = st.tuples(st.floats(-5, 0), st.booleans())
completions = st.lists(
    st.tuples(st.floats(-3, 3), st.lists(tokens, min_size=4, max_size=4)), min_size=1, max_size=5
)
Completions = list[tuple[float, list[tuple[float, bool]]]]


def batch(rows: Completions) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities with gradients, advantages and mask."""
    log_probs = [[value for value, _ in row] for _, row in rows]
    mask = [[float(kept) for _, kept in row] for _, row in rows]
    return (
        torch.tensor(log_probs, dtype=torch.float64, requires_grad=True),
        torch.tensor([advantage for advantage, _ in rows], dtype=torch.float64),
        torch.tensor(mask, dtype=torch.float64),
    )


def grpo_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    ratio = token_ratio(log_probs, log_probs.detach(), mask)
    return (sequence_weights(mask) * clipped_surrogate(ratio, advantages)).sum()


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return (constant_weights(mask, 1.0) * score_function(log_probs, advantages)).sum()


def gradient(loss: Tensor, log_probs: Tensor) -> list[float]:
    (result,) = torch.autograd.grad(loss, log_probs, allow_unused=True)
    return [0.0] * log_probs.numel() if result is None else result.flatten().tolist()


@given(completions)
def test_sequence_mean(rows: Completions) -> None:
    expected = []
    for _, row in rows:
        kept = [value for value, is_kept in row if is_kept]
        expected.append(sum(kept) / len(kept) if kept else 0.0)
    values, _, mask = batch(rows)
    assert sequence_mean(values, mask).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("loss", [grpo_loss, reinforce_loss])
def test_the_expected_gradient_is_that_of_the_expected_reward(loss) -> None:
    """In expectation over completions of one token."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([0.2, 1.0, -0.4], dtype=torch.float64)
    probabilities = logits.softmax(dim=0)
    (target,) = torch.autograd.grad((probabilities * reward).sum(), logits, retain_graph=True)
    mask = torch.ones((1, 1), dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for token, probability in enumerate(probabilities.tolist()):
        log_prob = logits.log_softmax(dim=0)[token].reshape(1, 1)
        (result,) = torch.autograd.grad(loss(log_prob, reward[token : token + 1], mask), logits)
        expected -= probability * result
    torch.testing.assert_close(expected, target, rtol=0, atol=1e-9)


# KL

logits = st.lists(st.floats(-4, 4), min_size=4, max_size=4)


@given(logits, logits)
def test_kl_estimate_is_unbiased(ours: list[float], theirs: list[float]) -> None:
    policy = torch.tensor(ours, dtype=torch.float64).log_softmax(dim=0)
    reference = torch.tensor(theirs, dtype=torch.float64).log_softmax(dim=0)
    estimates = kl_estimate(policy, reference)
    expectation = (policy.exp() * estimates).sum()
    true = (policy.exp() * (policy - reference)).sum()
    assert expectation.item() == pytest.approx(true.item(), abs=1e-6)
    assert estimates.min() >= -1e-12
    assert kl_estimate(policy, policy).abs().max() == 0


@pytest.mark.parametrize("difference", [1e-3, -1e-3, 1e-4, 1e-6, 0.0])
def test_kl_estimate_of_a_small_drift_in_float32(difference: float) -> None:
    """As in the first steps of a run, where e^d - 1 would be mostly rounding errors."""
    result = kl_estimate(torch.zeros(1), torch.tensor([difference])).item()
    assert result >= 0
    assert result == pytest.approx(difference**2 / 2, rel=0.01, abs=1e-12)


# Mask


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=5, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), max_size=3),
)
def test_completion_mask(rows: list[list[int]], ends: list[int]) -> None:
    expected = []
    for row in rows:
        ended, kept = False, []
        for token in row:
            kept.append(0.0 if ended else 1.0)
            ended = ended or token in ends
        expected.append(kept)
    result = completion_mask(torch.tensor(rows), torch.tensor(ends, dtype=torch.long))
    assert result.dtype == torch.float32
    assert result.tolist() == expected


# Values

valued = st.lists(
    st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3), st.booleans()),
    min_size=2,
    max_size=6,
)
Valued = list[tuple[float, float, float, bool]]


def value_table(rows: Valued) -> list[Tensor]:
    """Return values, old values, returns and mask, one row of tokens each."""
    return [torch.tensor([c], dtype=torch.float64) for c in zip(*rows, strict=True)]


@given(valued, st.sampled_from([0.2, 1.0, None]))
def test_value_loss_and_its_slope(rows: Valued, clip: float | None) -> None:
    values, old, returns, _ = value_table(rows)
    values.requires_grad_()
    costs, slopes = [], []
    for value, before, target, _ in rows:
        cost, slope = (value - target) ** 2 / 2, value - target
        if clip is not None and abs(value - before) > clip:
            near = before + math.copysign(clip, value - before)
            if (near - target) ** 2 / 2 > cost:
                cost, slope = (near - target) ** 2 / 2, 0.0  # no gain from going farther
        costs.append(cost)
        slopes.append(slope)
    result = value_loss(values, old, returns, clip)
    assert result.flatten().tolist() == pytest.approx(costs, abs=1e-6)
    assert gradient(result.sum(), values) == pytest.approx(slopes, abs=1e-6)


def test_explained_variance() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0, 99.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    predictions = {"all": returns + 5, "nothing": torch.zeros(1, 4), "the reverse": -returns}
    result = {name: explained_variance(v, returns, mask).item() for name, v in predictions.items()}
    assert result == pytest.approx({"all": 1.0, "nothing": 0.0, "the reverse": -3.0})
    half = torch.tensor([[1.5, 2.0, 2.5, 0.0]])
    assert explained_variance(half, returns, mask).item() == pytest.approx(0.75)
    assert explained_variance(returns, torch.ones(1, 4), mask).isnan()


@given(completions)
def test_an_advantage_may_be_given_to_each_token(rows: Completions) -> None:
    """Equal advantages of all tokens of a completion act as the advantage of the completion."""
    log_probs, advantages, _ = batch(rows)
    each = advantages[:, None].expand_as(log_probs)
    ratio = log_probs.detach().exp() * 2
    for costs in (clipped_surrogate, is_clipped):
        assert torch.equal(costs(ratio, advantages), costs(ratio, each))
    assert torch.equal(score_function(log_probs, advantages), score_function(log_probs, each))
