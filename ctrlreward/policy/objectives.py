"""Policy-gradient objectives: advantages by baseline and scale, and the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor

from ctrlreward.arguments import not_negative, one_of
from ctrlreward.functional import advantages as formulas
from ctrlreward.functional import policy as losses
from ctrlreward.ranks import share_of_mean
from ctrlreward.reward import AnyReward

Baseline = Literal["group", "leave_one_out", "batch"]
Scale = Literal["group", "batch", "components", "none"]
Aggregation = Literal["sequence", "token", "constant", "sum"]

# Added to a standard deviation before dividing by it.
_EPSILON = 1e-4

_BASELINES: dict[Baseline, Callable[[Tensor, Tensor], Tensor]] = {
    "group": formulas.group_centred_advantages,
    "leave_one_out": formulas.leave_one_out_advantages,
    "batch": formulas.batch_baseline_advantages,
}


def check_objective(
    baseline: Baseline,
    scale: Scale,
    aggregation: Aggregation,
    beta: float,
    reward: AnyReward,
    num_generations: int,
) -> None:
    """Raise a ValueError if the choices do not fit each other, the reward or the groups."""
    one_of("baseline", baseline, get_args(Baseline))
    one_of("scale", scale, get_args(Scale))
    one_of("aggregation", aggregation, get_args(Aggregation))
    not_negative("beta", beta)
    if scale == "components" and (baseline != "group" or reward.weights is None):
        raise ValueError(
            "scale = 'components' normalises weighted components within groups, must have "
            f"baseline = 'group' and a weighted reward, got baseline = {baseline!r}"
        )
    if num_generations < 2 and baseline != "batch":
        raise ValueError(
            f"generation.num_generations must be 2 or more with baseline = {baseline!r}, which "
            f"compares the completions of a prompt, got {num_generations}"
        )


def completion_advantages(
    baseline: Baseline, scale: Scale, rewards: Tensor, groups: Tensor
) -> Tensor:
    """Compute the advantage of each completion, shape (n,); 0 where the reward is NaN.

    `groups` has the index of each completion's prompt. With the scale "components", the rewards are
    `decoupled_rewards`, which are normalised over the batch (GDPO, eq. 6).
    """
    if scale == "components":
        baseline, scale = "batch", "batch"
    centred = _BASELINES[baseline](rewards, groups)
    if scale == "none":
        return centred
    deviation = formulas.group_deviation if scale == "group" else formulas.batch_deviation
    return centred / (deviation(rewards, groups) + _EPSILON)


def loss_terms(
    aggregation: Aggregation,
    log_probs: Tensor,
    reference: Tensor,
    advantages: Tensor,
    mask: Tensor,
    max_length: int,
    beta: float,
) -> dict[str, Tensor]:
    """Compute the loss of the policy that sampled, and its logged terms.

    `log_probs`, with gradients, `reference`, the same under the reference policy, and `mask` have
    the shape (n, tokens), `advantages` (n,). A collective: means over tokens include the tokens of
    all ranks.

    Returns `loss`, with gradients, and without them `kl` from the reference and `entropy`, in nats
    per token, as means over completions of the mean over tokens.
    """
    by_sequence = losses.sequence_weights(mask)
    if aggregation == "sequence":
        weights = by_sequence
    elif aggregation == "token":
        weights = share_of_mean(mask.sum()) * losses.token_weights(mask)
    else:
        weights = losses.constant_weights(mask, max_length if aggregation == "constant" else 1)
    gain = (weights * losses.score_function(log_probs, advantages)).sum()
    kl = (by_sequence * losses.kl_estimate(log_probs, reference)).sum()
    entropy = -(by_sequence * log_probs.detach()).sum()
    return {"loss": gain + beta * kl, "kl": kl.detach(), "entropy": entropy}
