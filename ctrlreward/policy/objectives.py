"""What the policy is trained on: algorithms by name, and the choices that each is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ctrlreward.functional import advantages as formulas
from ctrlreward.functional import policy as losses
from ctrlreward.policy.across_ranks import pooled
from ctrlreward.policy.experience import Experience, Updates

Algorithm = Literal[
    "grpo",
    "rloo",
    "reinforce",
    "dr_grpo",
    "dapo",
    "gspo",
    "reinforce++",
    "self_critical",
    "ppo",
]
Baseline = Literal["group", "leave_one_out", "batch", "greedy", "value"]
Scale = Literal["group", "batch", "none"]
Ratio = Literal["token", "sequence", "none"]
Aggregation = Literal["sequence", "token", "constant", "sum"]
KLEstimator = Literal["k1", "k2", "k3"]

NO_CLIP = (1.0, math.inf)

# Added to a standard deviation before it divides.
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
_NAMES = {
    "baseline": get_args(Baseline),
    "scale": get_args(Scale),
    "ratio": get_args(Ratio),
    "aggregation": get_args(Aggregation),
    "kl_estimator": get_args(KLEstimator),
}
# Where all rewards that a deviation is of are equal, what is divided by it has to be 0.
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
class Objective:
    """The choices that make an algorithm.

    Args:
        baseline: What a reward is compared with: the mean of its group, of the others of its
            group, of the batch, the reward of the prompt's greedy completion, or the value that
            is expected at each token.
        scale: Whose standard deviation of rewards the difference is divided by; of a batch's
            advantages by values, the deviation after their mean is taken off (`policy/value.py`).
        ratio: Importance ratio of tokens or of whole completions; "none": plain log-probabilities.
        clip: How far below and above 1 the ratio still earns anything.
        aggregation: Mean over completions of the mean over tokens ("sequence"), mean over all
            tokens ("token"), or mean over completions of the sum over tokens, divided by the
            longest length there can be ("constant") or by nothing ("sum").
        kl_estimator: Of the divergence from the untuned model.

    Raises:
        ValueError: Choices that don't go together, or clip bounds out of range.
    """

    baseline: Baseline
    scale: Scale
    ratio: Ratio
    clip: tuple[float, float]
    aggregation: Aggregation
    kl_estimator: KLEstimator = "k3"

    def __post_init__(self) -> None:
        if self.scale not in _SCALES[self.baseline]:
            raise ValueError(
                f"scale = {self.scale!r} does not go with baseline = {self.baseline!r}, where it "
                f"can divide by nearly 0: give one of {', '.join(_SCALES[self.baseline])}"
            )
        lower, upper = self.clip
        if not (0 < lower <= 1 and upper > 0):
            raise ValueError(
                f"clip = ({lower}, {upper}): give how far below 1, in (0, 1], and how far above "
                "it, greater than 0, the ratio may go"
            )
        if self.ratio == "none" and tuple(self.clip) != NO_CLIP:
            raise ValueError(
                f"clip = ({lower}, {upper}) bounds a ratio, and ratio = 'none': give ratio = "
                "'token' or 'sequence', or no clip"
            )


OBJECTIVES: dict[Algorithm, Objective] = {
    # Shao et al. 2024
    "grpo": Objective("group", "group", "token", (0.2, 0.2), "sequence"),
    # Ahmadian et al. 2024
    "rloo": Objective("leave_one_out", "none", "none", NO_CLIP, "sum"),
    # Williams 1992
    "reinforce": Objective("batch", "none", "none", NO_CLIP, "sum"),
    # Liu et al. 2025
    "dr_grpo": Objective("group", "none", "token", (0.2, 0.2), "constant"),
    # Yu et al. 2025
    "dapo": Objective("group", "group", "token", (0.2, 0.28), "token"),
    # Zheng et al. 2025
    "gspo": Objective("group", "group", "sequence", (3e-4, 4e-4), "sequence"),
    # Hu et al. 2025, with the KL term in the loss instead of in the reward
    "reinforce++": Objective("batch", "batch", "token", (0.2, 0.2), "token"),
    # Rennie et al. 2017
    "self_critical": Objective("greedy", "none", "none", NO_CLIP, "sum"),
    # Schulman et al. 2017, with the KL term in the loss instead of in the reward
    "ppo": Objective("value", "batch", "token", (0.2, 0.2), "token"),
}


def objective_of(
    algorithm: Algorithm,
    baseline: Baseline | None = None,
    scale: Scale | None = None,
    ratio: Ratio | None = None,
    clip: tuple[float, float] | None = None,
    aggregation: Aggregation | None = None,
    kl_estimator: KLEstimator | None = None,
) -> Objective:
    """An algorithm's choices, with those that are given in their place.

    Raises:
        ValueError: An unknown algorithm or choice, or choices that don't go together.
    """
    if algorithm not in OBJECTIVES:
        raise ValueError(f"algorithm = {algorithm!r}: give one of {', '.join(OBJECTIVES)}")
    given: dict[str, Any] = {
        "baseline": baseline,
        "scale": scale,
        "ratio": ratio,
        "clip": clip,
        "aggregation": aggregation,
        "kl_estimator": kl_estimator,
    }
    for name, names in _NAMES.items():
        if given[name] is not None and given[name] not in names:
            raise ValueError(f"{name} = {given[name]!r}: give one of {', '.join(names)}")
    return replace(OBJECTIVES[algorithm], **{n: v for n, v in given.items() if v is not None})


def check_sampling(objective: Objective, algorithm: str, group_size: int, updates: Updates) -> None:
    """Makes sure that what is sampled can be learned from as is wanted.

    Raises:
        ValueError: Groups of one are to be compared, or later updates know no ratio.
    """
    if group_size < 2 and objective.baseline in ("group", "leave_one_out"):
        raise ValueError(f"group_size = {group_size}: {algorithm} compares 2 or more")
    if objective.ratio == "none" and updates.are_off_policy:
        several = f"{updates.per_rollout} updates per rollout need"
        raise ValueError(
            f"{'overlapped rewards need' if updates.overlap else several} a ratio to the policy "
            "that sampled: give ratio = 'token' or 'sequence', or one epoch and one minibatch "
            "without overlap"
        )


def advantages_of(
    objective: Objective, rewards: Tensor, groups: Tensor, greedy: Tensor | None
) -> Tensor:
    """The advantage of each completion, shape (n,); 0 where it has none.

    Args:
        objective: Its baseline, any but `"value"`, and its scale.
        rewards: NaN where a sample failed, shape (n,).
        groups: The number of each completion's prompt, shape (n,).
        greedy: Reward of each prompt's greedy completion, shape (prompts,); None with any other
            baseline.
    """
    if greedy is not None:
        return formulas.self_critical_advantages(rewards, groups, greedy)
    centred = _BASELINES[objective.baseline](rewards, groups)
    if objective.scale == "none":
        return centred
    return centred / (_DEVIATIONS[objective.scale](rewards, groups) + _EPSILON)


def advantages_on_all(
    objective: Objective, rewards: Tensor, group_size: int, greedy: Tensor | None
) -> Tensor:
    """`advantages_of` this rank's completions, compared with those of all ranks, shape (n,).

    Args:
        objective: Its baseline, any but `"value"`, and its scale.
        rewards: NaN where a sample failed, shape (n,); those of a prompt side by side.
        group_size: Completions of each prompt.
        greedy: Reward of each prompt's greedy completion, where that is the baseline.
    """
    everyones, own = pooled(rewards)
    groups = torch.arange(len(everyones)) // group_size
    all_greedy = None if greedy is None else pooled(greedy)[0]
    return advantages_of(objective, everyones, groups, all_greedy)[own]


def weigh(
    objective: Objective, mask: Tensor, max_length: int, share: float = 1.0
) -> dict[str, Tensor]:
    """How much each token of an update counts, for `terms_of` on all of it or on its parts.

    Args:
        objective: Its aggregation.
        mask: 1 on the tokens that are learned from, shape (n, tokens).
        max_length: The longest completion there can be.
        share: What weights are multiplied with whose sum is that of all tokens; see
            `across_ranks.share_of_mean`.

    Returns:
        `"loss"` by the objective's aggregation, `"sequence"` and `"token"`; each (n, tokens).
    """
    sequence, token = losses.sequence_weights(mask), share * losses.token_weights(mask)
    chosen = {
        "sequence": sequence,
        "token": token,
        "constant": losses.constant_weights(mask, max_length),
        "sum": losses.constant_weights(mask, 1),
    }
    return {"loss": chosen[objective.aggregation], "sequence": sequence, "token": token}


def terms_of(
    objective: Objective,
    current: Tensor,
    experience: Experience,
    weights: dict[str, Tensor],
    kl_coef: float,
) -> dict[str, Tensor]:
    """The loss and what is logged of it, as sums: those of an update's parts add up to its own.

    Args:
        objective: What is wanted.
        current: Log-probabilities under the policy as it is, with gradients, shape (n, tokens).
        experience: n completions.
        weights: Of `weigh`, their rows of the n completions.
        kl_coef: Weight of the KL term.

    Returns:
        `loss`, with gradients; without: `kl` from the untuned model and `entropy` in nats per
        token, mean over completions of the mean over tokens; `ratio` to the policy that sampled,
        `clip_fraction` in [0, 1], and `update_kl`, the divergence of the policy as it is from the
        one that sampled, as means over tokens.
    """
    old = current.detach() if experience.old is None else experience.old
    advantages, mask = experience.advantages, experience.mask
    if objective.ratio == "none":
        ratio = losses.token_ratio(current.detach(), old, mask)
        costs = losses.score_function(current, advantages)
    else:
        ratio = _RATIOS[objective.ratio](current, old, mask)
        costs = losses.clipped_surrogate(ratio, advantages, objective.clip)
    kl = (weights["sequence"] * _KL[objective.kl_estimator](current, experience.reference)).sum()
    loss = (weights["loss"] * costs).sum() + kl_coef * kl
    clipped = losses.is_clipped(ratio, advantages, objective.clip)
    logged = {
        "kl": kl,
        "entropy": -(weights["sequence"] * current).sum(),
        "ratio": (weights["token"] * ratio).sum(),
        "clip_fraction": (weights["token"] * clipped).sum(),
        "update_kl": (weights["token"] * losses.kl_estimate(old, current)).sum(),
    }
    return {"loss": loss, **{name: value.detach() for name, value in logged.items()}}
