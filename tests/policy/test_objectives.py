"""Advantages and losses, compared with Python loops over completions and tokens."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook import grpo_loss, reinforce_loss
from torch import Tensor

from ctrlreward.policy.objectives import (
    ALGORITHMS,
    NO_CLIP,
    AlgorithmParts,
    Experience,
    Objective,
    completion_advantages,
    loss_terms,
    loss_weights,
)
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Rollout

LONGEST = 5

CLIPS = [(0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4), NO_CLIP]
objectives = st.builds(
    lambda ratio, clip, aggregation, kl: AlgorithmParts(
        "group", "none", ratio, NO_CLIP if ratio == "none" else clip, aggregation, kl
    ),
    st.sampled_from(["token", "sequence", "none"]),
    st.sampled_from(CLIPS),
    st.sampled_from(["sequence", "token", "constant", "sum"]),
    st.sampled_from(["k1", "k2", "k3"]),
)
# A token: log-probability now, when sampled, and under the untuned model.
tokens = st.tuples(st.floats(-4, 0), st.floats(-4, 0), st.floats(-4, 0))
completions = st.lists(
    st.tuples(
        st.floats(-3, 3),
        st.lists(tokens, min_size=4, max_size=4),
        st.integers(0, 4),  # length; 0: left out because it was cut off
    ),
    min_size=1,
    max_size=5,
)
Completions = list[tuple[float, list[tuple[float, float, float]], int]]


def tensors(rows: Completions, with_old: bool = True) -> tuple[Tensor, Experience]:
    table = torch.tensor([row for _, row, _ in rows], dtype=torch.float64)
    mask = torch.tensor([[float(t < n) for t in range(4)] for _, _, n in rows]).double()
    n = len(rows)
    rollout = Rollout([""] * n, torch.zeros(n, 4), mask, mask, torch.ones(n, dtype=torch.bool))
    advantages = torch.tensor([a for a, _, _ in rows], dtype=torch.float64)
    old = table[..., 1] if with_old else None
    current = table[..., 0].clone().requires_grad_()
    return current, Experience(rollout, advantages, mask, table[..., 2], old)


def loss_and_gradient(choices: AlgorithmParts, rows: Completions, beta: float) -> dict[str, Any]:
    current, experience = tensors(rows)
    weights = loss_weights(choices, experience, LONGEST)
    terms = loss_terms(choices, current, experience, weights, beta)
    (gradient,) = torch.autograd.grad(terms["loss"], current)
    return {**{name: value.item() for name, value in terms.items()}, "gradient": gradient}


def by_loops(choices: AlgorithmParts, rows: Completions, beta: float) -> dict[str, Any]:
    """Compute the terms, and the gradient of the loss at each token, in plain Python."""
    n, all_tokens = len(rows), max(1, sum(length for _, _, length in rows))
    lower, upper = choices.clip
    terms = dict.fromkeys(["loss", "kl", "entropy", "ratio", "clip_fraction", "update_kl"], 0.0)
    slopes = [[0.0] * 4 for _ in rows]
    for i, (advantage, row, length) in enumerate(rows):
        logs = [now - then for now, then, _ in row[:length]]
        for t, (now, _, untuned) in enumerate(row[:length]):
            whole = choices.ratio == "sequence"
            ratio = math.exp(sum(logs) / length if whole else logs[t])
            share = {
                "sequence": 1 / length / n,
                "token": 1 / all_tokens,
                "constant": 1 / LONGEST / n,
                "sum": 1 / n,
            }[choices.aggregation]
            too_high = advantage > 0 and ratio > 1 + upper
            too_low = advantage < 0 and ratio < 1 - lower
            if choices.ratio == "none":
                terms["loss"] -= share * advantage * now
                slopes[i][t] -= share * advantage
            elif too_high or too_low:
                terms["loss"] -= share * advantage * (1 + upper if too_high else 1 - lower)
                terms["clip_fraction"] += 1 / all_tokens
            else:
                terms["loss"] -= share * advantage * ratio
                # A completion's ratio depends on each of its tokens.
                for other in range(length) if whole else [t]:
                    by = length if whole else 1
                    slopes[i][other] -= share * advantage * ratio / by
            d = untuned - now
            value, slope = {
                "k1": (-d, -d),
                "k2": (d * d / 2, -d),
                "k3": (math.exp(d) - 1 - d, 1 - math.exp(d)),
            }[choices.kl_estimator]
            terms["kl"] += value / length / n
            slopes[i][t] += beta * slope / length / n
            terms["entropy"] -= now / length / n
            terms["ratio"] += ratio_shown(choices, ratio, logs[t]) / all_tokens
            terms["update_kl"] += (math.exp(logs[t]) - 1 - logs[t]) / all_tokens
    terms["loss"] += beta * terms["kl"]
    return {**terms, "gradient": slopes}


def ratio_shown(choices: AlgorithmParts, ratio: float, log: float) -> float:
    return math.exp(log) if choices.ratio == "none" else ratio


@settings(max_examples=300)
@given(objectives, completions, st.sampled_from([0.0, 0.3]))
def test_terms_equal_the_loops(choices: AlgorithmParts, rows: Completions, beta: float) -> None:
    ours, theirs = loss_and_gradient(choices, rows, beta), by_loops(choices, rows, beta)
    gradient, slopes = ours.pop("gradient"), theirs.pop("gradient")
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    expected = torch.tensor(slopes, dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)


@given(objectives, completions, st.integers(1, 5))
def test_microbatches_add_up_to_the_update(choices, rows, size) -> None:
    current, experience = tensors(rows)
    weights = loss_weights(choices, experience, LONGEST)
    whole = loss_terms(choices, current, experience, weights, 0.3)
    sums = dict.fromkeys(whole, 0.0)
    for places in torch.arange(len(rows)).split(size):
        part = {name: w[places] for name, w in weights.items()}
        terms = loss_terms(choices, current[places], experience[places], part, 0.3)
        sums = {name: sums[name] + terms[name].item() for name in terms}
    assert sums == pytest.approx({n: v.item() for n, v in whole.items()}, rel=1e-9, abs=1e-9)


# One update and no clipping


@pytest.mark.parametrize(
    ("algorithm", "changes", "textbook"),
    [
        *(("grpo", {"clip": clip}, grpo_loss) for clip in CLIPS),
        *(("rloo", {"ratio": ratio}, reinforce_loss) for ratio in ("token", "none")),
    ],
)
@given(rows=completions)
def test_one_update_has_the_gradient_of_the_textbook(
    algorithm: str, changes: dict[str, Any], textbook: Any, rows: Completions
) -> None:
    """At a ratio of 1 the clip has no effect."""
    current, experience = tensors(rows, with_old=False)
    choices = Objective(algorithm, **changes).choices
    weights = loss_weights(choices, experience, LONGEST)
    loss = loss_terms(choices, current, experience, weights, 0.0)["loss"]
    (gradient,) = torch.autograd.grad(loss, current)
    whole = textbook(current, experience.advantages, experience.mask)
    (expected,) = torch.autograd.grad(whole, current)
    torch.testing.assert_close(gradient, expected)


def test_the_gradient_of_each_kl_estimator_over_tokens_of_the_policy() -> None:
    """k1 and k2 have that of the divergence itself; k3 has not."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    policy = logits.log_softmax(dim=0)
    true = (policy.exp() * (policy - reference)).sum()
    (expected,) = torch.autograd.grad(true, logits, retain_graph=True)
    mask = torch.ones((3, 1), dtype=torch.float64)
    rollout = Rollout([""] * 3, mask, mask, mask, mask[:, 0].bool())
    experience = Experience(rollout, torch.zeros(3), mask, reference[:, None], None)
    probable = {"loss": mask, "token": mask, "sequence": policy.detach().exp()[:, None]}
    for name in ("k1", "k2", "k3"):
        choices = Objective("grpo", kl_estimator=name).choices
        terms = loss_terms(choices, policy[:, None], experience, probable, 1.0)
        (gradient,) = torch.autograd.grad(terms["loss"], logits, retain_graph=True)
        assert torch.allclose(gradient, expected) == (name != "k3")
        assert math.isclose(terms["kl"].item(), true.item()) == (name != "k2")


# Advantages

rated = st.lists(
    st.tuples(st.one_of(st.floats(-10, 10), st.just(math.nan)), st.integers(0, 2)),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "ppo"])
@given(rated, st.lists(st.floats(-10, 10), min_size=3, max_size=3))
def test_advantages_equal_the_loops(algorithm, rows, greedy) -> None:
    every = [reward for reward, _ in rows if not math.isnan(reward)]
    expected = []
    for i, (reward, group) in enumerate(rows):
        if math.isnan(reward):
            expected.append(0.0)
            continue
        mine = [r for r, other in rows if other == group and not math.isnan(r)]
        rest = [r for r, g in rows[:i] + rows[i + 1 :] if g == group and not math.isnan(r)]
        if algorithm in ("grpo", "dapo", "gspo"):
            spread = statistics.stdev(mine) if len(mine) > 1 else 0.0
            expected.append((reward - statistics.fmean(mine)) / (spread + 1e-4))
        elif algorithm == "dr_grpo":
            expected.append(reward - statistics.fmean(mine))
        elif algorithm == "rloo":
            expected.append(reward - statistics.fmean(rest) if rest else 0.0)
        elif algorithm == "reinforce":
            expected.append(reward - statistics.fmean(every))
        elif algorithm == "reinforce++":
            spread = statistics.stdev(every) if len(every) > 1 else 0.0
            expected.append((reward - statistics.fmean(every)) / (spread + 1e-4))
        else:
            expected.append(reward - greedy[group])
    values, groups = zip(*rows, strict=True)
    likeliest = torch.tensor(greedy, dtype=torch.float64) if algorithm == "self_critical" else None
    got = completion_advantages(
        ALGORITHMS[algorithm],
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(groups),
        likeliest,
    )
    assert got.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


# AlgorithmParts


def test_a_given_choice_replaces_the_algorithms_own() -> None:
    changed = Objective("grpo", scale="none", aggregation="constant").choices
    assert changed == Objective("dr_grpo").choices
    assert Objective("dapo", clip=(0.2, 0.2), aggregation="sequence").choices == ALGORITHMS["grpo"]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"baseline": "mean"}, "objective.baseline must be one of group, leave_one_out, batch"),
        ({"kl_estimator": "k4"}, "objective.kl_estimator must be one of k1, k2, k3"),
        (
            {"baseline": "batch"},
            r"scale = 'group' cannot be used with objective.baseline = 'batch'.*batch, non",
        ),
        (
            {"baseline": "greedy", "scale": "batch"},
            "objective.scale = 'batch' cannot be used with .*, must be one of .*none",
        ),
        ({"baseline": "value"}, r"scale = 'group' cannot be used with objective\.baseline = 'val"),
        ({"clip": (1.5, 0.2)}, r"clip must be how far the ratio may .* got \(1.5, 0.2\)"),
        ({"clip": (0.2, 0.0)}, r"objective.clip must be how far .*, got \(0.2, 0.0\)"),
        ({"clip": 0.2}, r"objective.clip must be how far .*, got 0.2"),
        ({"beta": -0.1}, r"objective.beta must be 0 or more, got -0.1"),
        ({"ratio": "none"}, r"clip = \(0.2, 0.2\) bounds a ratio, but objective.ratio = 'none'"),
        (
            {"algorithm": "rloo", "multi_objective_aggregation": "normalize_then_sum"},
            "must have baseline and scale 'group', as 'grpo' and 'dapo', got 'leave_one_out'",
        ),
        (
            {"multi_objective_aggregation": "gdpo"},
            "objective.multi_objective_aggregation must be one of sum_then_normalize, norm",
        ),
        (
            {"algorithm": "reinforce", "filter_groups": "total"},
            "with the baseline 'batch' they are not: must have the baseline 'group' or",
        ),
        ({"filter_groups": "total", "max_refills": 0}, "objective.max_refills must be positive, g"),
    ],
)
def test_bad_choices(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(**choices)


# Splitting into updates


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 4))
def test_each_epoch_splits_all_completions(n: int, epochs: int, minibatches: int) -> None:
    optimizer = OptimizerConfig(epochs, minibatches)
    if n < minibatches:
        with pytest.raises(
            ValueError, match=f"optimizer.minibatches = {minibatches}, but this batch has only"
        ):
            list(optimizer.minibatch_rows(n))
        return
    batches = [places.tolist() for places in optimizer.minibatch_rows(n)]
    assert len(batches) == optimizer.per_rollout
    sizes = {len(places) for places in batches}
    assert max(sizes) - min(sizes) <= 1
    for epoch in range(epochs):
        own = batches[epoch * minibatches : (epoch + 1) * minibatches]
        assert sorted(place for places in own for place in places) == list(range(n))
