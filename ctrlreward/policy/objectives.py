"""Policy-gradient objectives: algorithms by name, their advantages and their loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ctrlreward.arguments import not_negative, one_of
from ctrlreward.functional import advantages as formulas
from ctrlreward.functional import policy as losses
from ctrlreward.ranks import share_of_mean
from ctrlreward.reward import AnyReward

Algorithm = Literal["grpo", "dr_grpo", "dapo", "rloo", "reinforce", "reinforce++"]
Baseline = Literal["group", "leave_one_out", "batch"]
Scale = Literal["group", "batch", "none"]
Aggregation = Literal["sequence", "token", "constant", "sum"]
Reference = Literal["start", "base"]
MultiObjective = Literal["sum_then_normalize", "normalize_then_sum"]

# Added to a standard deviation before dividing by it.
_EPSILON = 1e-4

_BASELINES: dict[Baseline, Callable[[Tensor, Tensor], Tensor]] = {
    "group": formulas.group_centred_advantages,
    "leave_one_out": formulas.leave_one_out_advantages,
    "batch": formulas.batch_baseline_advantages,
}
_DEVIATIONS: dict[Scale, Callable[[Tensor, Tensor], Tensor]] = {
    "group": formulas.group_deviation,
    "batch": formulas.batch_deviation,
}


class AlgorithmParts(NamedTuple):
    """The three choices that define an algorithm.

    Attributes:
        baseline: Subtracted from the reward: the mean reward of the `"group"` (the completions of
            the same prompt), of the other completions of the group (`"leave_one_out"`), or of the
            `"batch"`.
        scale: Advantages are divided by the standard deviation of the rewards in the `"group"` or
            the `"batch"`, or by nothing (`"none"`).
        aggregation: Mean over completions of the mean over tokens (`"sequence"`), mean over all
            tokens (`"token"`), or mean over completions of the sum over tokens, divided by
            `max_completion_length` (`"constant"`) or by nothing (`"sum"`).
    """

    baseline: Baseline
    scale: Scale
    aggregation: Aggregation


ALGORITHMS: dict[Algorithm, AlgorithmParts] = {
    # Shao et al. 2024
    "grpo": AlgorithmParts("group", "group", "sequence"),
    # Liu et al. 2025
    "dr_grpo": AlgorithmParts("group", "none", "constant"),
    # Yu et al. 2025, eq. 8, without dynamic sampling
    "dapo": AlgorithmParts("group", "group", "token"),
    # Ahmadian et al. 2024
    "rloo": AlgorithmParts("leave_one_out", "none", "sum"),
    # Williams 1992
    "reinforce": AlgorithmParts("batch", "none", "sum"),
    # Hu et al. 2025, with the KL term in the loss instead of the reward
    "reinforce++": AlgorithmParts("batch", "batch", "token"),
}


@dataclass(frozen=True)
class Objective:
    """The algorithm and the KL term.

    A rollout makes one update, so the ratio to the policy that sampled is 1, and no clip of PPO,
    GRPO or DAPO binds: each algorithm is REINFORCE with its baseline, scale and aggregation.

    Args:
        algorithm: `"grpo"`, `"dr_grpo"`, `"dapo"`, `"rloo"`, `"reinforce"` or `"reinforce++"`.
        beta: Weight of the KL divergence (k3), per token, in the loss, ≥ 0; TRL's default is 0.
        reference: Policy for the KL divergence, if training starts from a trained
            adapter (`LoRA.adapter`): that policy, frozen (`"start"`), or the `"base"` model.
        multi_objective_aggregation: How the advantages of several weighted components are computed,
            as in TRL: from their sum (`"sum_then_normalize"`), or as the weighted sum of components
            that are normalised separately within the group, and then over the batch
            (`"normalize_then_sum"`, GDPO, Liu et al. 2026, eqs. 4 to 6). The latter takes an
            algorithm with baseline and scale `"group"`, such as `"grpo"`.

    Raises:
        ValueError: An unknown name, names that cannot be combined, or a number out of range.

    Example:
        >>> Objective("dr_grpo").parts.scale
        'none'
    """

    algorithm: Algorithm = "grpo"
    beta: float = 0.05
    reference: Reference = "start"
    multi_objective_aggregation: MultiObjective = "sum_then_normalize"

    def __post_init__(self) -> None:
        one_of("objective.algorithm", self.algorithm, ALGORITHMS)
        one_of("objective.reference", self.reference, get_args(Reference))
        name, options = "multi_objective_aggregation", get_args(MultiObjective)
        one_of(f"objective.{name}", self.multi_objective_aggregation, options)
        not_negative("objective.beta", self.beta)
        own = ALGORITHMS[self.algorithm]
        if self.decoupled and (own.baseline, own.scale) != ("group", "group"):
            raise ValueError(
                "objective.multi_objective_aggregation = 'normalize_then_sum' normalises within "
                f"groups, must have the algorithm 'grpo' or 'dapo', got {self.algorithm!r}"
            )

    @cached_property
    def parts(self) -> AlgorithmParts:
        """The algorithm's choices.

        Decoupled rewards are already normalised within the groups, so their scale is the batch.
        """
        own = ALGORITHMS[self.algorithm]
        return own._replace(baseline="batch", scale="batch") if self.decoupled else own

    @cached_property
    def decoupled(self) -> bool:
        """True if the components are normalised separately."""
        return self.multi_objective_aggregation == "normalize_then_sum"


def check_objective(objective: Objective, reward: AnyReward, num_generations: int) -> None:
    """Raise if the objective cannot learn from a reward's components or the sampled groups."""
    if objective.decoupled and reward.weights is None:
        raise ValueError(
            "objective.multi_objective_aggregation = 'normalize_then_sum' sums the weighted "
            "components of a reward, but this one has another aggregate, must be 'weighted'"
        )
    if num_generations < 2 and ALGORITHMS[objective.algorithm].baseline != "batch":
        raise ValueError(
            f"generation.num_generations must be 2 or more for {objective.algorithm}, which "
            f"compares the completions of a prompt, got {num_generations}"
        )


def completion_advantages(parts: AlgorithmParts, rewards: Tensor, groups: Tensor) -> Tensor:
    """Compute the advantage of each completion, shape (n,); 0 where the reward is NaN.

    `groups` has the index of each completion's prompt.
    """
    centred = _BASELINES[parts.baseline](rewards, groups)
    if parts.scale == "none":
        return centred
    return centred / (_DEVIATIONS[parts.scale](rewards, groups) + _EPSILON)


def loss_terms(
    parts: AlgorithmParts,
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
    if parts.aggregation == "sequence":
        weights = by_sequence
    elif parts.aggregation == "token":
        weights = share_of_mean(mask.sum()) * losses.token_weights(mask)
    else:
        length = max_length if parts.aggregation == "constant" else 1
        weights = losses.constant_weights(mask, length)
    gain = (weights * losses.score_function(log_probs, advantages)).sum()
    kl = (by_sequence * losses.kl_estimate(log_probs, reference)).sum()
    entropy = -(by_sequence * log_probs.detach()).sum()
    return {"loss": gain + beta * kl, "kl": kl.detach(), "entropy": entropy}


def check_loss(terms: dict[str, Tensor]) -> None:
    """Raise if the loss is not finite: an update would make all weights NaN."""
    if not torch.isfinite(terms["loss"]):
        values = ", ".join(f"{name} = {float(value.detach()):.3g}" for name, value in terms.items())
        raise RuntimeError(
            f"the loss of this step is not finite ({values}), and the policy was not updated. "
            "Resume from the last checkpoint with a lower optimizer.learning_rate, with "
            "Trainer(gradient_clip_val=1.0), or in float32. If a reward is extreme, bound it."
        )
