"""Policy-gradient objectives: algorithms by name, the critic, advantages and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

from ctrlreward.arguments import checked_keywords, not_negative, one_of, positive
from ctrlreward.functional import advantages as formulas
from ctrlreward.functional import policy as losses
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.ranks import gather_values, share_of_mean
from ctrlreward.reward import AnyReward

Algorithm = Literal[
    "grpo", "rloo", "reinforce", "dr_grpo", "dapo", "gspo", "reinforce++", "self_critical", "ppo"
]
Baseline = Literal["group", "leave_one_out", "batch", "greedy", "value"]
Scale = Literal["group", "batch", "none"]
Ratio = Literal["token", "sequence", "none"]
Aggregation = Literal["sequence", "token", "constant", "sum"]
KLEstimator = Literal["k1", "k2", "k3"]
Reference = Literal["start", "base"]
MultiObjective = Literal["sum_then_normalize", "normalize_then_sum"]

NO_CLIP = (1.0, math.inf)

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
# Scales whose deviation can be 0 only where the advantages are 0 as well.
_SCALES: dict[Baseline, tuple[Scale, ...]] = {
    "group": ("group", "batch", "none"),
    "leave_one_out": ("group", "batch", "none"),
    "batch": ("batch", "none"),
    "greedy": ("none",),
    "value": ("batch", "none"),
}
_RATIOS: dict[Ratio, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": losses.token_ratio,
    "sequence": losses.sequence_ratio,
}
_KL: dict[KLEstimator, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": losses.kl_k1_penalty,
    "k2": losses.kl_k2,
    "k3": losses.kl_estimate,
}


@dataclass(frozen=True)
class AlgorithmParts:
    """The six choices that define an algorithm; `Objective` documents each."""

    baseline: Baseline
    scale: Scale
    ratio: Ratio
    clip: tuple[float, float]
    aggregation: Aggregation
    kl_estimator: KLEstimator = "k3"

    def __post_init__(self) -> None:
        if self.scale not in _SCALES[self.baseline]:
            raise ValueError(
                f"objective.scale = {self.scale!r} cannot be used with objective.baseline = "
                f"{self.baseline!r}, where it may divide by nearly 0, must be one of "
                f"{', '.join(_SCALES[self.baseline])}"
            )
        try:
            lower, upper = self.clip
        except TypeError:
            lower = upper = math.nan
        if not (0 < lower <= 1 and upper > 0):
            raise ValueError(
                "objective.clip must be how far the ratio may go below 1, in (0, 1], and above 1, "
                f"greater than 0, got {self.clip}"
            )
        if self.ratio == "none" and tuple(self.clip) != NO_CLIP:
            raise ValueError(
                f"objective.clip = ({lower}, {upper}) bounds a ratio, but objective.ratio = "
                f"'none'. Set the ratio to 'token' or 'sequence', or the clip to {NO_CLIP}."
            )


_OPTIONS = {"reference": Reference, "multi_objective_aggregation": MultiObjective}
_NAMES = {name: get_args(h) for name, h in get_type_hints(AlgorithmParts).items() if name != "clip"}

ALGORITHMS: dict[Algorithm, AlgorithmParts] = {
    # Shao et al. 2024
    "grpo": AlgorithmParts("group", "group", "token", (0.2, 0.2), "sequence"),
    # Ahmadian et al. 2024
    "rloo": AlgorithmParts("leave_one_out", "none", "none", NO_CLIP, "sum"),
    # Williams 1992
    "reinforce": AlgorithmParts("batch", "none", "none", NO_CLIP, "sum"),
    # Liu et al. 2025
    "dr_grpo": AlgorithmParts("group", "none", "token", (0.2, 0.2), "constant"),
    # Yu et al. 2025
    "dapo": AlgorithmParts("group", "group", "token", (0.2, 0.28), "token"),
    # Zheng et al. 2025
    "gspo": AlgorithmParts("group", "group", "sequence", (3e-4, 4e-4), "sequence"),
    # Hu et al. 2025, with the KL term in the loss instead of the reward
    "reinforce++": AlgorithmParts("batch", "batch", "token", (0.2, 0.2), "token"),
    # Rennie et al. 2017
    "self_critical": AlgorithmParts("greedy", "none", "none", NO_CLIP, "sum"),
    # Schulman et al. 2017, with the KL term in the loss instead of the reward
    "ppo": AlgorithmParts("value", "batch", "token", (0.2, 0.2), "token"),
}


@checked_keywords(
    kl_coef="beta",
    mask_truncated="mask_truncated_completions",
    epsilon="clip=(epsilon, epsilon)",
    epsilon_high="clip=(epsilon, epsilon_high)",
    cliprange="clip=(cliprange, cliprange)",
    loss_type="algorithm",
    importance_sampling_level="ratio",
    scale_rewards="scale",
    dynamic_sampling="filter_groups='total'",
    max_num_gen_batches="max_refills=max_num_gen_batches - 1",
)
@dataclass(frozen=True)
class Objective:
    """The algorithm, changes to its choices, and the KL term.

    A choice of None is the algorithm's default.

    Args:
        algorithm: `"grpo"`, `"dr_grpo"`, `"dapo"`, `"gspo"`, `"rloo"`, `"reinforce"`,
            `"reinforce++"`, `"self_critical"` or `"ppo"`.
        baseline: Subtracted from the reward: the mean reward of the `"group"` (the completions of
            the same prompt), of the other completions of the group (`"leave_one_out"`) or of the
            `"batch"`, the reward of the prompt's `"greedy"` completion, or the `"value"` that a
            value head predicts at each token.
        scale: Advantages are divided by the standard deviation of the rewards in the `"group"` or
            the `"batch"`, or by nothing (`"none"`). With the baseline `"value"`, `"batch"` whitens
            the advantages of all tokens. TRL's `scale_rewards`.
        ratio: Importance ratio per `"token"` or per completion (`"sequence"`), TRL's
            `importance_sampling_level`; `"none"` for plain log-probabilities.
        clip: How far the ratio may go below and above 1 before the gradient is cut off: TRL's
            `epsilon` and `epsilon_high`.
        aggregation: Mean over completions of the mean over tokens (`"sequence"`), mean over all
            tokens (`"token"`), or mean over completions of the sum over tokens, divided by
            `max_completion_length` (`"constant"`) or by nothing (`"sum"`).
        kl_estimator: `"k1"`, `"k2"` or `"k3"`, for the KL divergence from the reference. k1
            has the gradient of k2.
        beta: Weight of the KL divergence, per token, in the loss, ≥ 0; TRL's default is 0.
        reference: Policy for the KL divergence, if training starts from a trained
            adapter (`LoRA.adapter`): that policy, frozen (`"start"`), or the `"base"` model.
        mask_truncated_completions: Whether to exclude completions that were cut off by their length
            from the loss, as in TRL. Their rewards still count in the baselines.
        multi_objective_aggregation: How the advantages of several weighted components are computed,
            as in TRL: their sum, with baseline and scale as above (`"sum_then_normalize"`), or the
            weighted sum of components that are normalised separately within the group, and
            then over the batch (`"normalize_then_sum"`, GDPO, Liu et al. 2026, eqs. 4 to 6). The
            latter takes an algorithm with baseline and scale `"group"`, such as `"grpo"`.
        filter_groups: Score whose deviation among the completions of a prompt is their signal:
            `"total"`, or a component of the reward, before any shaping. Groups without signal are
            replaced by groups of other prompts of the training set (dynamic sampling of DAPO, Yu
            et al. 2025, eq. 11). None keeps all groups.
        max_refills: Largest number of extra sampling rounds of a step, ≥ 1. Rewards of groups that
            are still without signal afterwards have no effect.

    Raises:
        ValueError: An unknown algorithm or choice, choices that cannot be combined, or a number
            out of range.

    Example:
        >>> Objective("dapo").choices.clip
        (0.2, 0.28)
    """

    algorithm: Algorithm = "grpo"
    baseline: Baseline | None = None
    scale: Scale | None = None
    ratio: Ratio | None = None
    clip: tuple[float, float] | None = None
    aggregation: Aggregation | None = None
    kl_estimator: KLEstimator | None = None
    beta: float = 0.05
    mask_truncated_completions: bool = False
    reference: Reference = "start"
    multi_objective_aggregation: MultiObjective = "sum_then_normalize"
    filter_groups: str | None = None
    max_refills: int = 2

    def __post_init__(self) -> None:
        one_of("objective.algorithm", self.algorithm, ALGORITHMS)
        for name, options in _OPTIONS.items():
            one_of(f"objective.{name}", getattr(self, name), get_args(options))
        positive("objective.max_refills", self.max_refills)
        not_negative("objective.beta", self.beta)
        for name, names in _NAMES.items():
            choice = getattr(self, name)
            if choice is not None:
                one_of(f"objective.{name}", choice, names)
        chosen = self._chosen  # raises if they cannot be combined
        if self.decoupled and (chosen.baseline, chosen.scale) != ("group", "group"):
            raise ValueError(
                "objective.multi_objective_aggregation = 'normalize_then_sum' normalises within "
                "groups, must have baseline and scale 'group', as 'grpo' and 'dapo', got "
                f"{chosen.baseline!r} and {chosen.scale!r}"
            )
        if self.filter_groups is not None and not self.compares:
            raise ValueError(
                f"objective.filter_groups = {self.filter_groups!r} drops groups whose advantages "
                f"are 0, and with the baseline {chosen.baseline!r} they are not: must have the "
                "baseline 'group' or 'leave_one_out', as 'grpo' and 'rloo'"
            )

    @cached_property
    def choices(self) -> AlgorithmParts:
        """The algorithm's choices, overridden by the given ones.

        Decoupled rewards are already normalised within the groups, so their scale is the batch.
        """
        chosen = self._chosen
        return replace(chosen, baseline="batch", scale="batch") if self.decoupled else chosen

    @cached_property
    def decoupled(self) -> bool:
        """True if the components are normalised separately."""
        return self.multi_objective_aggregation == "normalize_then_sum"

    @property
    def compares(self) -> bool:
        """True if the completions of a prompt are compared with each other."""
        return self._chosen.baseline in ("group", "leave_one_out")

    @property
    def _chosen(self) -> AlgorithmParts:
        given: dict[str, Any] = {name: getattr(self, name) for name in (*_NAMES, "clip")}
        changes = {name: choice for name, choice in given.items() if choice is not None}
        return replace(ALGORITHMS[self.algorithm], **changes)


@checked_keywords(lam="gae_lambda", vf_coef="coef", cliprange_value="clip")
@dataclass(frozen=True)
class Critic:
    """Advantage estimation with a value head, and its loss, of the baseline `"value"` (`ppo`).

    Args:
        gamma: Discount per token, in [0, 1].
        gae_lambda: λ of generalised advantage estimation, in [0, 1]; 1 uses only rewards, 0 only
            the next token's value.
        coef: Weight of the value loss, ≥ 0. Its gradient also reaches the adapter.
        clip: Largest change of a value from its value at sampling, in units of the reward; None
            for no clipping.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> Critic(gae_lambda=1.0, clip=None).gamma
        1.0
    """

    gamma: float = 1.0
    gae_lambda: float = 0.95
    coef: float = 0.1
    clip: float | None = 0.2

    def __post_init__(self) -> None:
        for name, number in (("gamma", self.gamma), ("gae_lambda", self.gae_lambda)):
            if not 0 <= number <= 1:
                raise ValueError(f"critic.{name} must be in [0, 1], got {number}")
        not_negative("critic.coef", self.coef)
        positive("critic.clip", self.clip)


class ValueHead(nn.Module):
    """The expected return before each token, a float32 linear function of the last hidden state.

    It predicts 0 until it has been trained.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return the values of hidden states of shape (..., width): float32, shape (...)."""
        values: Tensor = self.linear(states.float()).squeeze(-1)
        return values


def check_reward(objective: Objective, reward: AnyReward) -> None:
    """Raise if the objective cannot learn from a reward's components."""
    if objective.decoupled and reward.weights is None:
        raise ValueError(
            "objective.multi_objective_aggregation = 'normalize_then_sum' sums the weighted "
            "components of a reward, but this one has another aggregate, must be 'weighted'"
        )
    if objective.filter_groups is not None:
        names = ("total", *reward.components)
        one_of("objective.filter_groups", objective.filter_groups, names)


def check_sampling(objective: Objective, num_generations: int, optimizer: OptimizerConfig) -> None:
    """Raise if the objective cannot learn from the sampled groups or with these updates."""
    choices = objective.choices
    if num_generations < 2 and objective.compares:
        raise ValueError(
            f"generation.num_generations must be 2 or more for {objective.algorithm}, which "
            f"compares the completions of a prompt, got {num_generations}"
        )
    if objective.filter_groups is not None and optimizer.overlap:
        raise ValueError(
            "objective.filter_groups needs the rewards of a rollout before the next is sampled, "
            "but optimizer.overlap = True has them a step later. Leave one of the two out."
        )
    if choices.ratio == "none" and optimizer.off_policy:
        reason = f"{optimizer.per_rollout} updates per rollout need"
        raise ValueError(
            f"{'optimizer.overlap = True needs' if optimizer.overlap else reason} a ratio to the "
            f"policy that sampled, but objective.ratio = 'none' ({objective.algorithm}). Set it to "
            "'token' or 'sequence', or use one iteration, one minibatch and no overlap."
        )


def completion_advantages(
    choices: AlgorithmParts, rewards: Tensor, groups: Tensor, greedy: Tensor | None
) -> Tensor:
    """Compute the advantage of each completion, shape (n,); 0 where the reward is NaN.

    `groups` has the index of each completion's prompt, and `greedy` the reward of each prompt's
    greedy completion, shape (prompts,).
    """
    if greedy is not None:
        return formulas.self_critical_advantages(rewards, groups, greedy)
    centred = _BASELINES[choices.baseline](rewards, groups)
    if choices.scale == "none":
        return centred
    return centred / (_DEVIATIONS[choices.scale](rewards, groups) + _EPSILON)


def token_advantages(
    critic: Critic, rewards: Tensor, values: Tensor, mask: Tensor, whiten: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the advantage and the return of each token, and a mask of the tokens to learn from.

    The tokens of a failed completion, whose reward is NaN, get advantage 0 and are excluded
    from whitening and from the value loss. Returns are never whitened. Rewards have shape (n,), all
    others (n, tokens).
    """
    valid = mask * ~rewards.isnan()[:, None]
    given = formulas.rewards_at_end(torch.nan_to_num(rewards), mask)
    advantages = formulas.generalised_advantages(
        given, values, valid, critic.gamma, critic.gae_lambda
    )
    returns = advantages + values
    if whiten:
        all_ranks, _ = gather_values(advantages[valid.bool()])
        advantages = formulas.whitened(advantages, valid, all_ranks)
    return advantages, returns, valid


@dataclass(frozen=True)
class Experience:
    """Completions with everything that stays fixed while the policy is updated on them.

    Attributes:
        rollout: n completions.
        advantages: Shape (n,), or (n, tokens) for one per token.
        mask: 1 on the tokens to learn from, shape (n, tokens), as all others.
        reference: Log-probabilities under the reference policy.
        old: The same under the policy that sampled; None if that makes the only update.
        values: Values at sampling; None without a value head, as the next two.
        returns: The returns that the values should predict.
        valued: 1 on the tokens of completions with a reward.
    """

    rollout: Rollout
    advantages: Tensor
    mask: Tensor
    reference: Tensor
    old: Tensor | None
    values: Tensor | None = None
    returns: Tensor | None = None
    valued: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> Experience:
        """Select completions by row."""
        rows = rows.to(self.mask.device)
        parts: dict[str, Any] = {n: v if v is None else v[rows] for n, v in vars(self).items()}
        return Experience(**parts)


def loss_weights(
    choices: AlgorithmParts, experience: Experience, max_length: int
) -> dict[str, Tensor]:
    """Compute the weight of each token in the loss and in the logged means, (n, tokens).

    `"loss"` by the algorithm's aggregation, `"sequence"` and `"token"`, and `"value"` if there are
    values to train. A collective: means over tokens include the tokens of all ranks.
    """
    mask = experience.mask
    sequence = losses.sequence_weights(mask)
    token = share_of_mean(mask.sum()) * losses.token_weights(mask)
    weights = {"sequence": sequence, "token": token}
    if choices.aggregation in weights:
        weights["loss"] = weights[choices.aggregation]
    else:
        length = max_length if choices.aggregation == "constant" else 1
        weights["loss"] = losses.constant_weights(mask, length)
    if experience.valued is not None:
        valued = mask * experience.valued
        weights["value"] = share_of_mean(valued.sum()) * losses.token_weights(valued)
    return weights


def loss_terms(
    choices: AlgorithmParts,
    log_probs: Tensor,
    experience: Experience,
    weights: dict[str, Tensor],
    beta: float,
) -> dict[str, Tensor]:
    """Compute the loss and its logged terms as sums: microbatches add up to their update.

    `log_probs` have gradients, shape (n, tokens); `weights` are rows of `loss_weights`.

    Returns `loss`, with gradients. Without: `kl` from the reference and `entropy`, in nats per
    token, as means over completions of the mean over tokens; `ratio` to the policy that sampled,
    `clip_fraction` in [0, 1], and `update_kl` from the policy that sampled, as means over tokens.
    """
    old = log_probs.detach() if experience.old is None else experience.old
    advantages, mask = experience.advantages, experience.mask
    if choices.ratio == "none":
        ratio = losses.token_ratio(log_probs.detach(), old, mask)
        costs = losses.score_function(log_probs, advantages)
    else:
        ratio = _RATIOS[choices.ratio](log_probs, old, mask)
        costs = losses.clipped_surrogate(ratio, advantages, choices.clip)
    kl = (weights["sequence"] * _KL[choices.kl_estimator](log_probs, experience.reference)).sum()
    loss = (weights["loss"] * costs).sum() + beta * kl
    clipped = losses.is_clipped(ratio, advantages, choices.clip)
    logged = {
        "kl": kl,
        "entropy": -(weights["sequence"] * log_probs).sum(),
        "ratio": (weights["token"] * ratio).sum(),
        "clip_fraction": (weights["token"] * clipped).sum(),
        "update_kl": (weights["token"] * losses.kl_estimate(old, log_probs)).sum(),
    }
    return {"loss": loss, **{name: value.detach() for name, value in logged.items()}}
