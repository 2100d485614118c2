"""Transforming rewards on their way from a `Reward` to the policy that learns from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from ctrlreward.callbacks.terms import LengthWindow, Potential, SoftOverlong, WeightSchedules
from ctrlreward.functional.shaping import (
    Moments,
    adaptive_kl_coef,
    normalised,
)
from ctrlreward.functional.statistics import valid_mean
from ctrlreward.ranks import on_every_rank, unless_one_fails
from ctrlreward.reward import Reward, RewardBatch, weighted_sum
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

KL = "policy/kl"

Shape = Callable[[Samples, RewardBatch, Tensor], Scores]


@runtime_checkable
class ShapedModule(Protocol):
    """What a LightningModule has to offer to have its rewards shaped: two attributes.

    Where `shape_rewards` is not None, each training step computes its advantages from what it
    returns for the samples, their scores, and the completions' lengths in tokens, shape (n,). A
    step calls it first with all samples that it learns from; what they are compared with, such as
    greedy completions, comes in later calls.
    """

    reward: Reward
    shape_rewards: Shape | None


@runtime_checkable
class KLWeighted(Protocol):
    """What a LightningModule has to offer for a KL target: the KL term's weight in the loss.

    It logs `policy/kl` in each training step, too.
    """

    kl_coef: float


class RewardShaping(pl.Callback):
    """Transforms the rewards that a policy learns from; the raw ones are logged as ever.

    What is given here is done, always in this order:

    1. `weights`: the total is summed up anew with the weights of this step.
    2. `potential`: its term is added.
    3. `clip`: the total is held in bounds, so that a scorer's outlier counts no more than they say.
    4. `window`, `overlong`: a cost of length is taken off. After clipping, so that it is felt at
       the bounds, too; before normalising, so that it is in units of the reward.
    5. `normalise`: the running mean is taken off, and what is left divided by the running deviation
       of all rewards so far. Last, so that advantages have one scale whatever came before.

    An algorithm that divides by a deviation itself (GRPO by its group's) undoes the fifth.
    A sample without a reward has none afterwards. Under several ranks all normalise alike.

    Logs at each step, of what is active: `shaping/weight/<component>`; `shaping/after_weights`,
    `after_potential`, `after_clip`, `after_length`, the mean reward behind each (before the first
    it is `reward/total`, behind the last `reward/shaped`, which the module logs);
    `shaping/potential` and `shaping/length`, the mean terms; `shaping/clipped`, the share of
    samples; `shaping/running_mean` and `shaping/running_std`; `shaping/kl_coef`, the weight in this
    step's loss; and always `shaping/fail_rate`, the share of samples without a shaped reward.

    Args:
        weights: Component of the `Reward` → points of step and weight, `{"similarity": [(0, 0.2),
            (100, 1.0)]}`: in place of its given weight one that goes in straight lines over
            optimizer steps, and holds before the first and after the last point.
        potential: What a text is worth less what was there before it.
        clip: The smallest and the largest total, None for no bound.
        window: A cost per token outside of a window of lengths.
        overlong: DAPO's punishment of completions that are nearly, or quite, too long.
        normalise: Whether to normalise.
        kl_target: The divergence that `policy/kl` is held at, in its unit (nats per token), by
            changing the module's `kl_coef` after each batch (Ziegler et al. 2019); None: never.
        kl_horizon: Batches over which an error of 100 % would double `kl_coef`; one counts as 20 %
            at most. The paper's is 10.

    Attributes:
        moments: Count, mean and squares of the rewards so far, before normalisation.
        kl_coef: The weight in the next step's loss; None before training and without a target.

    Raises:
        ValueError: Nothing to do, points that don't rise, or a number out of range. In `setup`: a
            scheduled component that the reward does not have or does not weigh, or a weight that
            rewards the worse direction.
        MisconfigurationException: In `setup`: the module can't be shaped, or is already, or has a
            target and no KL term.
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
            raise ValueError("nothing to shape: give weights, clip, normalise or another")
        self.clip = None if clip is None else _bounds(clip)
        if kl_target is not None and not kl_target > 0:
            raise ValueError(f"kl_target = {kl_target}: give nats per token, greater than 0")
        if not kl_horizon >= 1:
            raise ValueError(f"kl_horizon = {kl_horizon}: give 1 batch or more")
        self.weights = WeightSchedules(weights) if weights else None
        self.potential = potential
        self.window = window
        self.overlong = overlong
        self.normalise = normalise
        self.kl_target = kl_target
        self.kl_horizon = kl_horizon
        self.moments = Moments()
        self.kl_coef: float | None = None
        self._module: ShapedModule | None = None
        self._given_kl_coef = 0.0
        self._said: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """The running statistics and the weight of the KL term."""
        count, mean, squares = self.moments.count, self.moments.mean, self.moments.squares
        return {"count": count, "mean": mean, "squares": squares, "kl_coef": self.kl_coef}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes both of a checkpoint, and keeps its own schedules, bounds and target."""
        self.moments = Moments(*(state_dict[name] for name in ("count", "mean", "squares")))
        self.kl_coef = state_dict["kl_coef"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Puts itself between the module's rewards and its advantages, for training."""
        if stage != "fit":
            return
        if not isinstance(pl_module, ShapedModule):
            raise MisconfigurationException(
                f"RewardShaping can't shape the rewards of {type(pl_module).__name__}: define "
                "self.reward, a Reward, and self.shape_rewards = None, and compute advantages from "
                "self.shape_rewards(samples, scored, lengths) where it is set"
            )
        if pl_module.shape_rewards is not None:
            raise MisconfigurationException(
                f"the rewards of {type(pl_module).__name__} are shaped already, by "
                f"{pl_module.shape_rewards}: give the trainer one RewardShaping"
            )
        if self.weights is not None:
            self.weights.check(pl_module.reward)
        if self.kl_target is not None:
            self._given_kl_coef = _kl_coef_of(pl_module)
        self._module = pl_module
        pl_module.shape_rewards = partial(self._shape, trainer, pl_module.reward)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gives the module the weight of the KL term that a checkpoint held."""
        if self.kl_target is not None and isinstance(pl_module, KLWeighted):
            self.kl_coef = pl_module.kl_coef if self.kl_coef is None else self.kl_coef
            pl_module.kl_coef = self.kl_coef

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The next call has the samples that are learned from."""
        self._said = {}

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Logs what was done, and adapts the weight of the KL term."""
        if not self._said:  # rewards that are overlapped with updates come a batch later
            return
        if self.kl_target is not None and self.kl_coef is not None:
            self._said["kl_coef"] = self.kl_coef
            self._adapt(trainer, pl_module, self.kl_target, self.kl_coef)
        for name, value in self._said.items():
            pl_module.log(f"shaping/{name}", value, batch_size=1)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Leaves the module as it was."""
        self._leave()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leaves the module as it was."""
        self._leave()

    def _leave(self) -> None:
        if self._module is None:
            return
        self._module.shape_rewards = None
        if self.kl_target is not None and isinstance(self._module, KLWeighted):
            self._module.kl_coef = self._given_kl_coef
        if self.potential is not None:
            self.potential.component.scorer.release()
        self._module = None

    def _shape(
        self,
        trainer: pl.Trainer,
        reward: Reward,
        samples: Samples,
        scored: RewardBatch,
        lengths: Tensor,
    ) -> Scores:
        learned_from = not self._said
        said: dict[str, float] = {}
        rewards = scored.total
        if self.weights is not None:
            now = self.weights.at(trainer.global_step)
            said |= {f"weight/{name}": weight for name, weight in now.items()}
            rewards = weighted_sum({**(reward.weights or {}), **now}, scored.components)
            rewards = np.where(scored.failed, np.nan, rewards)
            said["after_weights"] = valid_mean(rewards)
        if self.potential is not None:
            rewards = self._with_potential(self.potential, rewards, samples, said)
        if self.clip is not None:
            rewards = self._clipped(self.clip, rewards, said)
        terms = [t.term(_numbers(lengths)) for t in (self.window, self.overlong) if t is not None]
        if terms:
            cost = np.sum(terms, axis=0)
            said["length"] = valid_mean(cost)
            rewards = rewards + cost
            said["after_length"] = valid_mean(rewards)
        if learned_from:
            self._said = {**said, "fail_rate": float(np.isnan(rewards).mean())}
            self._observe(rewards)
        return normalised(rewards, self.moments) if self.normalise else rewards

    @staticmethod
    def _with_potential(
        potential: Potential, rewards: Scores, samples: Samples, said: dict[str, float]
    ) -> Scores:
        term = unless_one_fails(lambda: potential.term(samples))
        said["potential"] = valid_mean(term)
        said["after_potential"] = valid_mean(rewards + term)
        return rewards + term

    @staticmethod
    def _clipped(bounds: tuple[float, float], rewards: Scores, said: dict[str, float]) -> Scores:
        clipped = np.clip(rewards, *bounds)
        said["clipped"] = valid_mean((clipped != rewards)[~np.isnan(rewards)].astype(np.float64))
        said["after_clip"] = valid_mean(clipped)
        return clipped

    def _observe(self, rewards: Scores) -> None:
        """Counts the rewards that are learned from, of all ranks on every rank."""
        everyone = on_every_rank(lambda: (Moments.of(rewards), len(rewards)))
        found = [moments for moments, _ in everyone]
        if not any(moments.count for moments in found):
            raise RuntimeError(
                f"all {sum(count for _, count in everyone)} samples of this step failed to get a "
                "shaped reward: see the warnings of the potential's scorer; nothing can be learned "
                "from it"
            )
        if self.normalise:
            for moments in found:
                self.moments = self.moments.merged(moments)
            self._said |= {"running_mean": self.moments.mean, "running_std": self.moments.std}

    def _adapt(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: float, kl_coef: float
    ) -> None:
        metrics = trainer.callback_metrics
        if KL not in metrics:
            raise MisconfigurationException(
                f"kl_target needs {KL!r}, which the module does not log in training_step: these "
                f"are {sorted(metrics)}"
            )
        found = on_every_rank(lambda: metrics[KL].item())
        kl = sum(found) / len(found)
        if math.isfinite(kl) and isinstance(pl_module, KLWeighted):
            self.kl_coef = adaptive_kl_coef(kl_coef, kl, target, self.kl_horizon)
            pl_module.kl_coef = self.kl_coef


def _bounds(clip: tuple[float | None, float | None]) -> tuple[float, float]:
    low, high = clip
    bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    if not bounds[0] < bounds[1]:
        raise ValueError(f"clip = {clip}: give the smaller bound first, None for no bound")
    return bounds


def _kl_coef_of(module: object) -> float:
    if not isinstance(module, KLWeighted) or not module.kl_coef > 0:
        raise MisconfigurationException(
            f"kl_target changes the kl_coef of {type(module).__name__} by a factor, and it has "
            "none greater than 0: define one to start with, such as 0.05"
        )
    return module.kl_coef


def _numbers(lengths: Tensor) -> Scores:
    return lengths.detach().cpu().double().numpy()
