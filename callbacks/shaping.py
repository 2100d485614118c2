"""`RewardShaping`: transforms rewards between a `Reward` and the policy that learns from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from ctrlreward.arguments import check_type, positive
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.ranges import RangeMultipliers, UsefulRange
from ctrlreward.callbacks.terms import ReferenceReward, ReferredModule, ShapedModule, SoftOverlong
from ctrlreward.functional.bootstrap import cluster_numbers
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.shaping import length_factor, valid_group_means
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.ranks import fail_together, on_every_rank
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scores


class RewardShapingMixin(CallbackMixin):
    """Transforms the rewards that a policy learns from; the raw rewards are logged unchanged.

    The given transformations are always applied in this order:

    1. `reference`: the total becomes the preference over the reference's reward, in (0, 1).
    2. `clip`: the total is clipped, which limits the effect of a scorer's outliers.
    3. `length_alpha`: it is multiplied by 1 / (1 + α · length / mean length of the prompt's
       completions) (GR³, Li et al. 2026). The reward must be 0 or more.
    4. `ranges`: it is mixed with the distances of scores from the bounds that they violate.
    5. `overlong`: a length penalty is subtracted. After clipping, so that it also works at the
       bounds.

    A sample without a reward remains without one. All ranks share the multipliers.

    Logs at each step, for the active transformations: `shaping/after_reference`, `after_clip`,
    `after_length_factor`, `after_ranges`, `after_length`, the mean reward after each;
    `shaping/reference`, the mean reward of the references; `shaping/length`, the mean penalty;
    `shaping/length_factor`, the mean factor; `shaping/range/<name>`, the mean of a bounded score,
    and `shaping/multiplier/<name>_low` and `_high`, the multipliers of its bounds;
    `shaping/clipped`, the share of clipped samples; and always `shaping/fail_rate`, the share of
    samples without a shaped reward.

    Args:
        clip: Lower and upper bound of the total; None for no bound.
        overlong: See `SoftOverlong`.
        reference: See `ReferenceReward`.
        length_alpha: α of the length factor, > 0: the larger, the more a long completion loses.
        ranges: Name → range that the mean of a score has to stay in, `{"similarity":
            UsefulRange(high=0.9)}`. A multiplier of each bound rises while it is violated and falls
            to 0 while it holds (Moskovitz et al. 2023, https://arxiv.org/abs/2310.04373; their
            multiplier is squashed into (0, 1) and never 0).
        range_rate: Step size of the multipliers, per standard deviation of the score.

    Examples:
        >>> from ctrlreward.callbacks import RewardShaping, SoftOverlong
        >>> overlong = SoftOverlong(longest=32, cache=8)
        >>> shaping = RewardShaping(clip=(-10.0, 0.0), overlong=overlong)
    """

    def __init__(
        self,
        clip: tuple[float | None, float | None] | None = None,
        overlong: SoftOverlong | None = None,
        reference: ReferenceReward | None = None,
        length_alpha: float | None = None,
        ranges: Mapping[str, UsefulRange] | None = None,
        range_rate: float = 0.1,
    ) -> None:
        super().__init__()
        if all(option is None for option in (clip, overlong, reference, length_alpha, ranges)):
            raise ValueError("nothing to shape, must have at least one of clip, overlong, …")
        positive("length_alpha", length_alpha)
        check_type("overlong", SoftOverlong, overlong, optional=True)
        check_type("reference", ReferenceReward, reference, optional=True)
        for name, bounds in (ranges or {}).items():
            check_type(f"ranges[{name!r}]", UsefulRange, bounds)
        self.bounds = None if clip is None else _bounds(clip)
        self.overlong = overlong
        self.reference = reference
        self.length_alpha = length_alpha
        self.ranges = None if ranges is None else RangeMultipliers(ranges, range_rate)
        self._module: ShapedModule | None = None
        self._metrics: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.ranges is None else {"ranges": self.ranges.to_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        ranges = state_dict.get("ranges")
        if ranges is not None and self.ranges is not None:
            self.ranges.restore(ranges)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        name = type(pl_module).__name__
        if not isinstance(pl_module, ShapedModule):
            self.refuse(
                f"{name} has no reward, a Reward, and shape_rewards, None by default, from which "
                "it computes advantages: self.shape_rewards(samples, scored, lengths)"
            )
        elif pl_module.shape_rewards is not None:
            self.refuse(f"{name}.shape_rewards is already {pl_module.shape_rewards}")
        elif self.reference is not None and not isinstance(pl_module, ReferredModule):
            self.refuse(f"reference needs complete_as_reference(prompts), which {name} lacks")
        else:
            if self.ranges is not None:
                self.ranges.check(pl_module.reward)
            self._module = pl_module
            pl_module.shape_rewards = self._shape

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Log the metrics of the step, and adapt the multipliers."""
        metrics, self._metrics = self._metrics, {}
        if self.ranges is not None:
            metrics |= {f"multiplier/{n}": value for n, value in self.ranges.multipliers.items()}
            metrics |= {f"range/{name}": mean for name, mean in self.ranges.end_step().items()}
        for name, value in metrics.items():
            pl_module.log(f"shaping/{name}", value, batch_size=1)

    def release(self) -> None:
        self._metrics = {}
        if self._module is not None:
            self._module.shape_rewards = None
            for component in self.ranges.components.values() if self.ranges else ():
                component.scorer.release()
        self._module = None

    def _shape(self, samples: Samples, scored: RewardBatch, lengths: Tensor) -> Scores:
        module: Any = self._module
        metrics: dict[str, float] = {}
        tokens = lengths.detach().cpu().double().numpy()
        rewards = scored.total
        if self.reference is not None:
            compare = partial(self.reference.preferences, rewards, samples, module)
            rewards, of_references = fail_together(compare)
            metrics["reference"] = valid_mean(of_references)
            metrics["after_reference"] = valid_mean(rewards)
        if self.bounds is not None:
            clipped = np.clip(rewards, *self.bounds)
            changed = (clipped != rewards)[~np.isnan(rewards)].astype(np.float64)
            rewards = clipped
            metrics |= {"clipped": valid_mean(changed), "after_clip": valid_mean(rewards)}
        if self.length_alpha is not None:
            factor = fail_together(partial(self._length_factor, samples, rewards, tokens))
            rewards = rewards * factor
            metrics["length_factor"] = valid_mean(np.where(np.isnan(rewards), np.nan, factor))
            metrics["after_length_factor"] = valid_mean(rewards)
        if self.ranges is not None:
            rewards = self.ranges.constrained(samples, scored, rewards)
            metrics["after_ranges"] = valid_mean(rewards)
        if self.overlong is not None:
            term = self.overlong.term(tokens)
            rewards = rewards + term
            metrics |= {"length": valid_mean(term), "after_length": valid_mean(rewards)}
        self._metrics = {**metrics, "fail_rate": float(np.isnan(rewards).mean())}
        by_rank = on_every_rank(lambda: np.isfinite(rewards))
        if not any(valid.any() for valid in by_rank):
            raise RuntimeError(f"all {sum(map(len, by_rank))} samples of this step failed")
        return rewards

    def _length_factor(self, samples: Samples, rewards: Scores, tokens: Scores) -> Scores:
        """Return the factor of each length, by the mean of the prompt's completions."""
        assert self.length_alpha is not None
        if (rewards < 0).any():
            i = int((rewards < 0).argmax())
            raise ValueError(
                f"length_alpha needs rewards of 0 or more, or clip=(0, None), got {rewards[i]:.4g} "
                f"for texts[{i}] = {shortened(samples.texts[i])}"
            )
        columns = [column for name, column in samples.columns().items() if name != "texts"]
        prompts = list(zip(*columns, strict=True)) if columns else [()] * len(samples)
        valid = np.where(np.isnan(rewards), np.nan, tokens)
        means = valid_group_means(valid, cluster_numbers(prompts))
        return length_factor(tokens, means, self.length_alpha)


def _bounds(clip: tuple[float | None, float | None]) -> tuple[float, float]:
    if not isinstance(clip, Sequence) or len(clip) != 2:
        raise TypeError(f"clip must be (lower, upper), None for no bound, got {clip!r}")
    low, high = -math.inf if clip[0] is None else clip[0], math.inf if clip[1] is None else clip[1]
    if not low < high or tuple(clip) == (None, None):
        raise ValueError(f"clip must be (lower, upper), None for at most one, got {clip}")
    return low, high
