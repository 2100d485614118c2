"""Parts of the losses; `policy/test_objectives.py` compares whole losses with loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.policy import (
    completion_mask,
    constant_weights,
    kl_estimate,
    score_function,
    sequence_weights,
    token_weights,
)


def test_the_expected_gradient_is_that_of_the_expected_reward() -> None:
    """In expectation over completions of one token."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([0.2, 1.0, -0.4], dtype=torch.float64)
    probabilities = logits.softmax(dim=0)
    (target,) = torch.autograd.grad((probabilities * reward).sum(), logits, retain_graph=True)
    expected = torch.zeros(3, dtype=torch.float64)
    for token, probability in enumerate(probabilities.tolist()):
        log_prob = logits.log_softmax(dim=0)[token].reshape(1, 1)
        cost = score_function(log_prob, reward[token : token + 1]).sum()
        (result,) = torch.autograd.grad(cost, logits)
        expected -= probability * result
    torch.testing.assert_close(expected, target, rtol=0, atol=1e-9)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_weights_of_tokens(lengths: list[int]) -> None:
    """Of a token of a completion of some length; masked tokens have none."""
    mask = torch.tensor([[float(t < n) for t in range(4)] for n in lengths])
    for weights, share in (
        (sequence_weights(mask), lambda n: 1 / n / len(lengths)),
        (token_weights(mask), lambda n: 1 / sum(lengths)),
        (constant_weights(mask, 8), lambda n: 1 / 8 / len(lengths)),
    ):
        expected = [[share(n) if t < n else 0.0 for t in range(4)] for n in lengths]
        torch.testing.assert_close(weights, torch.tensor(expected))


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
