"""`RewardShaping`: transforms rewards between a `Reward` and the policy that learns from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.terms import LengthWindow, Potential, SoftOverlong, WeightSchedules
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.shaping import Moments, adaptive_kl_coef, standardise_rewards
from ctrlreward.lightning_package import LightningModule, Trainer, misconfigured
from ctrlreward.ranks import fail_together, on_every_rank
from ctrlreward.reward import Reward, RewardBatch, weighted_sum
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

KL = "policy/kl"

ShapeRewards = Callable[[Samples, RewardBatch, Tensor, bool], Scores]


@runtime_checkable
class ShapedModule(Protocol):
    """A LightningModule whose rewards can be shaped.

    `shape_rewards` is None, or a function that `RewardShaping` sets. The module then calls
    `shape_rewards(samples, scored, lengths, baseline)` and computes advantages from what it
    returns: the shaped rewards, float64, shape (n,), NaN where a sample failed. `lengths` are those
    of the completions in tokens, shape (n,). `baseline` is False for the samples to learn from, in
    one call per step, and True for samples that only serve as a baseline, such as greedy
    completions: these are neither logged nor counted in the running statistics.
    """

    reward: Reward
    shape_rewards: ShapeRewards | None


@runtime_checkable
class KLWeighted(Protocol):
    """A LightningModule that logs `policy/kl`, with the weight of the KL term, `beta`."""

    beta: float


class RewardShapingMixin(CallbackMixin):
    """Transforms the rewards that a policy learns from; the raw rewards are logged unchanged.

    The given transformations are always applied in this order:

    1. `weights`: the total is recomputed with the weights of this step.
    2. `potential`: its term is added.
    3. `clip`: the total is clipped, which limits the effect of a scorer's outliers.
    4. `window`, `overlong`: a length penalty is subtracted. After clipping, so that it also works
       at the bounds; before normalisation, so that its unit is that of the reward.
    5. `normalise`: the running mean is subtracted, and the result divided by the running standard
       deviation of all rewards so far. Last, so that advantages always have the same scale.

    An algorithm that divides by a deviation itself (GRPO by its group's) undoes the fifth. A sample
    without a reward stays without one. All ranks share the running statistics.

    Logs at each step, for the active transformations: `shaping/weight/<component>`;
    `shaping/after_weights`, `after_potential`, `after_clip`, `after_length`, the mean reward after
    each (before all of them it is `reward/total`, after all of them `reward/shaped`, which the
    module logs); `shaping/potential` and `shaping/length`, the mean terms; `shaping/clipped`, the
    share of clipped samples; `shaping/running_mean` and `shaping/running_std`; `shaping/beta`, the
    weight in this step's loss; and always `shaping/fail_rate`, the share of samples without a
    shaped reward.

    Args:
        weights: Schedules that replace weights of the `Reward`: component → pairs of step and
            weight, `{"similarity": [(0, 0.2), (100, 1.0)]}`. Linear between the points over
            optimizer steps, constant before the first and after the last.
        potential: Potential-based shaping term.
        clip: Lower and upper bound of the total; None for no bound.
        window: Penalty per token outside a window of lengths.
        overlong: DAPO's soft penalty of completions near the length limit.
        normalise: Whether to normalise by the running mean and standard deviation.
        kl_target: Target of `policy/kl`, in nats per token, > 0. The module's `beta` is adapted
            after each batch (Ziegler et al. 2019); None leaves it alone.
        kl_horizon: Batches over which an error of 100 % would double `beta`; errors are clipped
            to 20 %. The paper's is 10.

    Raises:
        ValueError: No transformation, steps that do not increase, or a number out of range. In
            `setup`: a scheduled component that the reward does not have or does not weight, or a
            weight that rewards the worse direction.
        MisconfigurationException: In `setup`: the module cannot be shaped, is shaped already, or
            has no KL term for the target.

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
    ) -> None:
        super().__init__()
        if not any((weights, potential, clip, window, overlong, normalise, kl_target is not None)):
            raise ValueError("nothing to shape: give at least one of weights, clip, normalise, …")
        if kl_target is not None and not kl_target > 0:
            raise ValueError(f"kl_target = {kl_target}: give nats per token, greater than 0")
        if not kl_horizon >= 1:
            raise ValueError(f"kl_horizon = {kl_horizon}: give 1 batch or more")
        self.schedules = WeightSchedules(weights) if weights else None
        self.potential = potential
        self.bounds = None if clip is None else _bounds(*clip)
        self.window = window
        self.overlong = overlong
        self.normalise = normalise
        self.kl_target = kl_target
        self.kl_horizon = kl_horizon
        self.moments = Moments()
        self.beta: float | None = None
        self._module: ShapedModule | None = None
        self._weighted: KLWeighted | None = None  # the module, if it has a target
        self._module_beta = 0.0
        self._metrics: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics and the weight of the KL term."""
        return {**asdict(self.moments), "beta": self.beta}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both from a checkpoint; schedules, bounds and target stay as given."""
        moments = dict(state_dict)
        self.beta = moments.pop("beta")
        self.moments = Moments(**moments)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the module's `shape_rewards` for training."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if not isinstance(pl_module, ShapedModule):
            raise misconfigured(
                trainer,
                f"RewardShaping can't shape the rewards of {type(pl_module).__name__}: define "
                "self.reward, a Reward, and self.shape_rewards = None, and where it is not None, "
                "compute advantages from self.shape_rewards(samples, scored, lengths, baseline)",
            )
        if pl_module.shape_rewards is not None:
            raise misconfigured(
                trainer,
                f"the rewards of {type(pl_module).__name__} are already shaped by "
                f"{pl_module.shape_rewards}: give the trainer only one RewardShaping",
            )
        if self.schedules is not None:
            self.schedules.check(pl_module.reward)
        if self.kl_target is not None:
            if not isinstance(pl_module, KLWeighted) or not pl_module.beta > 0:
                raise misconfigured(
                    trainer,
                    f"kl_target scales the beta of {type(pl_module).__name__}, which has none "
                    "greater than 0: define one to start with, such as 0.05",
                )
            self._weighted, self._module_beta = pl_module, pl_module.beta
        self._module = pl_module
        pl_module.shape_rewards = partial(self._shape, trainer, pl_module.reward)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the module's `beta` to that of the checkpoint, if training is resumed."""
        if self._weighted is not None:
            self.beta = self._weighted.beta if self.beta is None else self.beta
            self._weighted.beta = self.beta

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Log the metrics of the step, and adapt the weight of the KL term."""
        metrics, self._metrics = self._metrics, {}
        if not metrics:  # with overlapped rewards the first step learns from nothing
            return
        if self._weighted is not None and self.kl_target is not None:
            metrics["beta"] = self._weighted.beta
            self.beta = self._weighted.beta = self._adapted(
                trainer, metrics["beta"], self.kl_target
            )
        for name, value in metrics.items():
            pl_module.log(f"shaping/{name}", value, batch_size=1)

    def release(self) -> None:
        """Restore the module, and free the potential's model."""
        self._metrics = {}
        if self._weighted is not None:
            self._weighted.beta = self._module_beta
        if self._module is not None:
            self._module.shape_rewards = None
            if self.potential is not None:
                self.potential.phi.scorer.release()
        self._module = self._weighted = None

    def _shape(
        self,
        trainer: Trainer,
        reward: Reward,
        samples: Samples,
        scored: RewardBatch,
        lengths: Tensor,
        baseline: bool,
    ) -> Scores:
        metrics: dict[str, float] = {}
        rewards = scored.total
        if self.schedules is not None:
            weights = self.schedules.at(trainer.global_step)
            metrics |= {f"weight/{name}": weight for name, weight in weights.items()}
            rewards = weighted_sum({**(reward.weights or {}), **weights}, scored.components)
            rewards = np.where(scored.failed, np.nan, rewards)
            metrics["after_weights"] = valid_mean(rewards)
        if self.potential is not None:
            term = fail_together(partial(self.potential.term, samples))
            rewards = rewards + term
            metrics |= {"potential": valid_mean(term), "after_potential": valid_mean(rewards)}
        if self.bounds is not None:
            clipped = np.clip(rewards, *self.bounds)
            changed = (clipped != rewards)[~np.isnan(rewards)].astype(np.float64)
            rewards = clipped
            metrics |= {"clipped": valid_mean(changed), "after_clip": valid_mean(rewards)}
        penalties = [p for p in (self.window, self.overlong) if p is not None]
        if penalties:
            tokens = lengths.detach().cpu().double().numpy()
            term = np.sum([penalty.term(tokens) for penalty in penalties], axis=0)
            rewards = rewards + term
            metrics |= {"length": valid_mean(term), "after_length": valid_mean(rewards)}
        if not baseline:
            self._metrics = {**metrics, "fail_rate": float(np.isnan(rewards).mean())}
            self._observe(rewards)
        return standardise_rewards(rewards, self.moments) if self.normalise else rewards

    def _observe(self, rewards: Scores) -> None:
        """Add the rewards of all ranks to the running statistics, on every rank."""
        by_rank = on_every_rank(lambda: (Moments.of(rewards), len(rewards)))
        if not any(moments.count for moments, _ in by_rank):
            raise RuntimeError(
                f"all {sum(count for _, count in by_rank)} samples of this step failed to get a "
                "shaped reward: there is nothing to learn from; see the warnings of the "
                "potential's scorer for the reason"
            )
        if self.normalise:
            for moments, _ in by_rank:
                self.moments = self.moments.merged(moments)
            self._metrics |= {"running_mean": self.moments.mean, "running_std": self.moments.std}

    def _adapted(self, trainer: Trainer, beta: float, target: float) -> float:
        """Return the weight of the KL term for the next step, by the KL of all ranks."""
        metrics = trainer.callback_metrics
        if KL not in metrics:
            raise misconfigured(
                trainer,
                f"kl_target needs {KL!r}, and the module does not log it in training_step, only "
                f"{sorted(metrics)}",
            )
        by_rank = on_every_rank(lambda: metrics[KL].item())
        kl = sum(by_rank) / len(by_rank)
        return adaptive_kl_coef(beta, kl, target, self.kl_horizon) if math.isfinite(kl) else beta


def _bounds(low: float | None, high: float | None) -> tuple[float, float]:
    bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    if not bounds[0] < bounds[1]:
        clip = (low, high)
        raise ValueError(f"clip = {clip}: give the smaller bound first, None for no bound")
    return bounds
