"""`RewardShaping`: transforms rewards between a `Reward` and the policy that learns from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from ctrlreward.arguments import check_type, positive
from ctrlreward.callbacks.monitoring import ReadingMixin, known_bounds, read_metrics
from ctrlreward.callbacks.ranges import RangeMultipliers, UsefulRange
from ctrlreward.callbacks.terms import (
    KLWeighted,
    LengthWindow,
    Potential,
    ReferenceReward,
    ReferredModule,
    ShapedModule,
    SoftOverlong,
    WeightSchedules,
)
from ctrlreward.functional.bootstrap import cluster_numbers
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.shaping import (
    Moments,
    adaptive_kl_coef,
    length_factor,
    standardise_rewards,
    valid_group_means,
)
from ctrlreward.lightning_package import LightningModule, Trainer, misconfigured
from ctrlreward.ranks import fail_together, on_every_rank
from ctrlreward.reward import Reward, RewardBatch, weighted_sum
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scores
from ctrlreward.selection.decider import check_declared

KL = "policy/kl"


class RewardShapingMixin(ReadingMixin):
    """Transforms the rewards that a policy learns from; the raw rewards are logged unchanged.

    The given transformations are always applied in this order:

    1. `weights`: the total is recomputed with the weights of this step.
    2. `reference`: it becomes the preference over the reference's reward, in (0, 1).
    3. `potential`: its term is added.
    4. `clip`: the total is clipped, which limits the effect of a scorer's outliers.
    5. `length_alpha`: it is multiplied by 1 / (1 + α · length / mean length of the prompt's
       completions) (GR³, Li et al. 2026). The reward must be 0 or more.
    6. `ranges`: it is mixed with the distances of scores from the bounds that they violate.
    7. `window`, `overlong`: a length penalty is subtracted. After clipping, so that it also works
       at the bounds; before normalisation, so that it has the unit of the reward.
    8. `normalise`: the running mean is subtracted, and the result divided by the running standard
       deviation of all rewards so far. Last, so that advantages always have the same scale.

    A sample without a reward remains without one. All ranks share the running statistics.

    Logs at each step, for the active transformations: `shaping/weight/<component>`;
    `shaping/after_weights`, `after_reference`, `after_potential`, `after_clip`,
    `after_length_factor`, `after_ranges`, `after_length`, the mean reward after each (before all of
    them it is `reward/total`, after all of them `reward/shaped`, which the module logs);
    `shaping/reference`, the mean reward of the references; `shaping/potential` and
    `shaping/length`, the mean terms; `shaping/length_factor`, the mean factor;
    `shaping/range/<name>`, the mean of a bounded score, and `shaping/multiplier/<name>_low` and
    `_high`, the multipliers of its bounds; `shaping/clipped`, the share of clipped samples;
    `shaping/running_mean` and `shaping/running_std`; `shaping/beta`, the weight in this step's
    loss; and always `shaping/fail_rate`, the share of samples without a shaped reward.

    Args:
        weights: Schedules that replace weights of the `Reward`: component → pairs of step and
            weight, `{"similarity": [(0, 0.2), (100, 1.0)]}`. Linear between the points over
            optimizer steps, constant before the first and after the last.
        potential: See `Potential`.
        clip: Lower and upper bound of the total; None for no bound.
        window: See `LengthWindow`.
        overlong: See `SoftOverlong`.
        normalise: Whether to normalise by the running mean and standard deviation, which an
            algorithm undoes that divides by a deviation itself, as GRPO does.
        kl_target: Target of `policy/kl`, in nats per token, > 0. The module's `beta` is adapted
            after each batch (Ziegler et al. 2019); None keeps it constant.
        kl_horizon: Batches over which an error of 100 % would double `beta`; errors are clipped
            to 20 %. The paper's is 10.
        reference: See `ReferenceReward`.
        length_alpha: α of the length factor, > 0: the larger, the more a long completion loses.
        ranges: Name → range that the mean of a score has to stay in, `{"similarity":
            UsefulRange(high=0.9)}`. A multiplier of each bound rises while it is violated and falls
            to 0 while it holds (Moskovitz et al. 2023, https://arxiv.org/abs/2310.04373; their
            multiplier is squashed into (0, 1) and never 0).
        range_rate: Step size of the multipliers, per standard deviation of the score.

    Raises:
        ValueError: No transformation, steps that do not increase, or a number out of range. In
            `setup`: weights or ranges that do not fit the reward. In training: a reward below 0
            with `length_alpha`.
        MisconfigurationException: In `setup`: the module cannot be shaped, is shaped already, has
            no KL term for the target, or no reference policy. In training: the key that a range
            monitors is not logged.

    Examples:
        >>> from ctrlreward.callbacks import RewardShaping, SoftOverlong
        >>> overlong = SoftOverlong(longest=32, cache=8)
        >>> shaping = RewardShaping(clip=(-10.0, 0.0), overlong=overlong, normalise=True)
    """

    def __init__(
        self,
        weights: dict[str, list[tuple[int, float]]] | None = None,
        potential: Potential | None = None,
        clip: tuple[float | None, float | None] | None = None,
        window: LengthWindow | None = None,
        overlong: SoftOverlong | None = None,
        normalise: bool = False,
        kl_target: float | None = None,
        kl_horizon: float = 10.0,
        reference: ReferenceReward | None = None,
        length_alpha: float | None = None,
        ranges: Mapping[str, UsefulRange] | None = None,
        range_rate: float = 0.1,
    ) -> None:
        super().__init__()
        given = (kl_target, reference, length_alpha, ranges)
        active = (weights, potential, clip, window, overlong, normalise)
        if not any(active) and all(option is None for option in given):
            raise ValueError(
                "nothing to shape, must have at least one of weights, clip, normalise, …"
            )
        for name, kind, option in (
            ("potential", Potential, potential),
            ("window", LengthWindow, window),
            ("overlong", SoftOverlong, overlong),
            ("reference", ReferenceReward, reference),
            *((f"ranges[{key!r}]", UsefulRange, each) for key, each in (ranges or {}).items()),
        ):
            if option is not None:
                check_type(name, kind, option)
        positive("kl_target (nats per token)", kl_target)
        positive("length_alpha", length_alpha)
        if not kl_horizon >= 1:
            raise ValueError(f"kl_horizon must be 1 batch or more, got {kl_horizon}")
        self.schedules = WeightSchedules(weights) if weights else None
        self.potential = potential
        self.bounds = None if clip is None else _bounds(clip)
        self.window = window
        self.overlong = overlong
        self.normalise = normalise
        self.kl_target = kl_target
        self.kl_horizon = kl_horizon
        self.reference = reference
        self.length_alpha = length_alpha
        self.ranges = None if ranges is None else RangeMultipliers(ranges, range_rate)
        self.moments = Moments()
        self.beta: float | None = None
        self._module: ShapedModule | None = None
        self._weighted: KLWeighted | None = None  # the module, if it has a target
        self._module_beta = 0.0
        self._metrics: dict[str, float] = {}
        self._mean_lengths: dict[tuple[Any, ...], float] = {}  # of the last step, by prompt

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics, the weight of the KL term, and the multipliers."""
        ranges = {} if self.ranges is None else {"ranges": self.ranges.to_dict()}
        return {**asdict(self.moments), "beta": self.beta, **ranges, "decided": self._decided_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them from a checkpoint; schedules, bounds and target are not changed."""
        moments = dict(state_dict)
        self.beta = moments.pop("beta")
        self._decided_step = moments.pop("decided", -1)
        ranges = moments.pop("ranges", None)
        if ranges is not None and self.ranges is not None:
            self.ranges.restore(ranges)
        self.moments = Moments(**moments)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the module's `shape_rewards` for training."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if not isinstance(pl_module, ShapedModule):
            raise misconfigured(
                trainer,
                f"RewardShaping can't shape the rewards of {type(pl_module).__name__}. Define "
                "self.reward, a Reward, and self.shape_rewards = None. If it is not None, "
                "compute advantages from self.shape_rewards(samples, scored, lengths, baseline).",
            )
        if pl_module.shape_rewards is not None:
            self.refuse(
                f"the rewards of {type(pl_module).__name__} are already shaped by "
                f"{pl_module.shape_rewards}. Use only one RewardShaping per trainer."
            )
        if self.schedules is not None:
            self.schedules.check(pl_module.reward)
        if self.ranges is not None:
            self.ranges.check(pl_module.reward)
            keys = [each.monitor for each in self.ranges.ranges.values() if each.monitor]
            check_declared(keys, known_bounds(trainer))
        if self._uses_policy and not isinstance(pl_module, ReferredModule):
            self.refuse(
                f"reference needs a policy to compare with, which {type(pl_module).__name__} "
                "does not have. Define complete_as_reference(prompts), or pass "
                "ReferenceReward('references')."
            )
        if self.kl_target is not None:
            if not isinstance(pl_module, KLWeighted) or not pl_module.beta > 0:
                raise misconfigured(
                    trainer,
                    f"kl_target scales the beta of {type(pl_module).__name__}, which is not "
                    "greater than 0. Define a first one, such as 0.05.",
                )
            self._weighted, self._module_beta = pl_module, pl_module.beta
        self._module = pl_module
        pl_module.shape_rewards = self._shape

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the module's `beta` from the checkpoint, if training is resumed."""
        if self._weighted is not None:
            self.beta = self._weighted.beta if self.beta is None else self.beta
            self._weighted.beta = self.beta

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Log the metrics of the step, and adapt the weight of the KL term."""
        metrics, self._metrics = self._metrics, {}
        if not metrics:  # with overlapped rewards the first step has no rewards
            return
        if self._weighted is not None and self.kl_target is not None:
            metrics["beta"] = self._weighted.beta
            self._adapt_beta(trainer, self._weighted, self.kl_target)
        if self.ranges is not None:
            metrics |= {f"multiplier/{n}": value for n, value in self.ranges.multipliers.items()}
            self.ranges.end_step()
        for name, value in metrics.items():
            pl_module.log(f"shaping/{name}", value, batch_size=1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adapt the multipliers of the ranges that monitor a logged key."""
        if self.ranges is not None and self.is_undecided(trainer):
            metrics, stale, _ = read_metrics(trainer, self._reader)
            try:
                self.ranges.end_validation(metrics, stale)
            except KeyError as error:
                raise misconfigured(trainer, f"RewardShaping: {error.args[0]}") from None
            self._reader.note()
            self._decided_step = trainer.global_step

    def release(self) -> None:
        """Restore the module, and free the potential's model."""
        self._metrics = {}
        if self._weighted is not None:
            self._weighted.beta = self._module_beta
        if self._module is not None:
            self._module.shape_rewards = None
            if self.potential is not None:
                self.potential.phi.scorer.release()
            for component in self.ranges.components.values() if self.ranges else ():
                component.scorer.release()
        self._module = self._weighted = None

    def _shape(
        self,
        samples: Samples,
        scored: RewardBatch,
        lengths: Tensor,
        baseline: bool,
    ) -> Scores:
        module: Any = self._module
        metrics: dict[str, float] = {}
        tokens = lengths.detach().cpu().double().numpy()
        weights: dict[str, float] = {}
        if self.schedules is not None:
            weights = self.schedules.at(module.trainer.global_step)
        rewards = _total(module.reward, scored, weights)
        if weights:
            metrics |= {f"weight/{name}": weight for name, weight in weights.items()}
            metrics["after_weights"] = valid_mean(rewards)
        if self.reference is not None:
            compare = partial(
                self.reference.preferences,
                rewards,
                samples,
                lambda each: _total(module.reward, module.reward(each), weights),
                module.complete_as_reference if self._uses_policy else None,
            )
            rewards, of_references = fail_together(compare)
            metrics["reference"] = valid_mean(of_references)
            metrics["after_reference"] = valid_mean(rewards)
        if self.potential is not None:
            term = fail_together(partial(self.potential.term, samples))
            rewards = rewards + term
            metrics |= {"potential": valid_mean(term), "after_potential": valid_mean(rewards)}
        if self.bounds is not None:
            clipped = np.clip(rewards, *self.bounds)
            changed = (clipped != rewards)[~np.isnan(rewards)].astype(np.float64)
            rewards = clipped
            metrics |= {"clipped": valid_mean(changed), "after_clip": valid_mean(rewards)}
        if self.length_alpha is not None:
            factor = fail_together(partial(self._length_factor, samples, rewards, tokens, baseline))
            rewards = rewards * factor
            metrics["length_factor"] = valid_mean(np.where(np.isnan(rewards), np.nan, factor))
            metrics["after_length_factor"] = valid_mean(rewards)
        if self.ranges is not None:
            values = self.ranges.values(samples, scored)
            if not baseline:
                means = self.ranges.observe(rewards, values)
                metrics |= {f"range/{name}": mean for name, mean in means.items()}
            rewards = self.ranges.constrained(rewards, values)
            metrics["after_ranges"] = valid_mean(rewards)
        penalties = [p for p in (self.window, self.overlong) if p is not None]
        if penalties:
            term = np.sum([penalty.term(tokens) for penalty in penalties], axis=0)
            rewards = rewards + term
            metrics |= {"length": valid_mean(term), "after_length": valid_mean(rewards)}
        if not baseline:
            self._metrics = {**metrics, "fail_rate": float(np.isnan(rewards).mean())}
            self._observe(rewards)
        return standardise_rewards(rewards, self.moments) if self.normalise else rewards

    @property
    def _uses_policy(self) -> bool:
        return self.reference is not None and self.reference.texts == "policy"

    def _length_factor(
        self, samples: Samples, rewards: Scores, tokens: Scores, baseline: bool
    ) -> Scores:
        """Return the factor of each length, by the mean of the completions to learn from."""
        assert self.length_alpha is not None
        if (rewards < 0).any():
            i = int((rewards < 0).argmax())
            raise ValueError(
                f"the reward of texts[{i}] = {shortened(samples.texts[i])} is {rewards[i]:.4g}, "
                "but length_alpha multiplies rewards, and a long text would gain from a negative "
                "one. Use a reward of 0 or more, clip=(0, None), or reference=ReferenceReward()."
            )
        columns = [column for name, column in samples.columns().items() if name != "texts"]
        prompts = list(zip(*columns, strict=True)) if columns else [()] * len(samples)
        if not baseline:
            valid = np.where(np.isnan(rewards), np.nan, tokens)
            means = valid_group_means(valid, cluster_numbers(prompts))
            self._mean_lengths = dict(zip(prompts, means.tolist(), strict=True))
        means = np.array([self._mean_lengths.get(prompt, np.nan) for prompt in prompts])
        return length_factor(tokens, means, self.length_alpha)

    def _observe(self, rewards: Scores) -> None:
        """Add the rewards of all ranks to the running statistics, on every rank."""
        by_rank = on_every_rank(lambda: (Moments.of(rewards), len(rewards)))
        if not any(moments.count for moments, _ in by_rank):
            raise RuntimeError(
                f"all {sum(count for _, count in by_rank)} samples of this step failed to get a "
                "shaped reward. See the warnings of the potential's scorer for the reason."
            )
        if self.normalise:
            for moments, _ in by_rank:
                self.moments = self.moments.merged(moments)
            self._metrics |= {"running_mean": self.moments.mean, "running_std": self.moments.std}

    def _adapt_beta(self, trainer: Trainer, module: KLWeighted, target: float) -> None:
        """Set the weight of the KL term for the next step, by the KL of all ranks."""
        metrics = trainer.callback_metrics
        if KL not in metrics:
            self.refuse(
                f"kl_target needs {KL!r}, and the module does not log it in training_step, only "
                f"{sorted(metrics)}"
            )
        by_rank = on_every_rank(lambda: metrics[KL].item())
        kl = sum(by_rank) / len(by_rank)
        if math.isfinite(kl):
            module.beta = adaptive_kl_coef(module.beta, kl, target, self.kl_horizon)
        self.beta = module.beta


def _total(reward: Reward, scored: RewardBatch, weights: Mapping[str, float]) -> Scores:
    """Return the totals, shape (n,), with other weights if there are any."""
    if not weights:
        return scored.total
    total = weighted_sum({**(reward.weights or {}), **weights}, scored.components)
    return np.where(scored.failed, np.nan, total)


def _bounds(clip: tuple[float | None, float | None]) -> tuple[float, float]:
    if not isinstance(clip, Sequence) or len(clip) != 2:
        raise TypeError(f"clip must be (lower, upper), None for no bound, got {clip!r}")
    low, high = -math.inf if clip[0] is None else clip[0], math.inf if clip[1] is None else clip[1]
    if not low < high or tuple(clip) == (None, None):
        raise ValueError(f"clip must be (lower, upper), None for at most one, got {clip}")
    return low, high
