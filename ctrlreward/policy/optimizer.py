"""Optimizer of a policy: AdamW, learning-rate schedules, updates from microbatches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from ctrlreward.arguments import checked_keywords, not_negative, one_of, positive
from ctrlreward.lightning_package import LightningModule, misconfigured
from ctrlreward.ranks import fail_together

Schedule: TypeAlias = Literal["constant", "constant_with_warmup", "linear", "cosine"]


@checked_keywords(
    epochs="num_iterations",
    num_ppo_epochs="num_iterations",
    num_mini_batches="minibatches",
    steps_per_generation="minibatches",
    per_device_train_batch_size="microbatch_size",
    gradient_accumulation_steps="microbatch_size",
    gradient_clip="max_grad_norm",
    gradient_clip_val="max_grad_norm",
    lr="learning_rate",
    schedule="lr_scheduler_type",
)
@dataclass(frozen=True)
class OptimizerConfig:
    """Optimisation: how a rollout is split into updates, and the settings of AdamW.

    With the defaults of the first five a rollout makes one update, by Lightning's automatic
    optimisation. If one of them is set, the module updates by manual optimisation.

    Args:
        num_iterations: Passes over each rollout, as in TRL.
        minibatches: Updates per pass.
        microbatch_size: Completions per backward pass; gradients are summed to the same update.
            None: all completions of an update at once.
        max_grad_norm: Largest gradient norm of an update; None, in place of TRL's 1.0, for no
            clipping. Replaces the trainer's `gradient_clip_val` in manual optimisation.
        overlap: Whether to score a rollout while the policy learns from the previous one. The
            importance ratio corrects for the delay of one step.
        learning_rate: Learning rate after the warm-up; TRL's default is 1e-6, for full
            fine-tuning.
        weight_decay: Weight decay of AdamW, of all trained weights, ≥ 0.
        warmup_steps: Updates over which the learning rate rises linearly.
        lr_scheduler_type: After the warm-up the learning rate stays (`"constant_with_warmup"`), or
            falls to 0 at the end of training linearly (`"linear"`) or along half a cosine
            (`"cosine"`); `"constant"` has no warm-up either. The end is the trainer's `max_steps`,
            or `max_epochs` of a dataloader with a length. One step ahead of transformers: no
            update has the rate 0.
        gradient_checkpointing: Whether to recompute activations in the backward pass instead of
            keeping them: less memory, more time, the same gradients.

    Raises:
        ValueError: A number is out of range, or the schedule is unknown.

    Example:
        >>> OptimizerConfig(num_iterations=2, minibatches=4).per_rollout
        8
    """

    num_iterations: int = 1
    minibatches: int = 1
    microbatch_size: int | None = None
    max_grad_norm: float | None = None
    overlap: bool = False
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    warmup_steps: int = 5
    lr_scheduler_type: Schedule = "constant_with_warmup"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        counts = ("num_iterations", "minibatches", "microbatch_size")
        for name in (*counts, "max_grad_norm", "learning_rate"):
            positive(f"optimizer.{name}", getattr(self, name))
        for name in ("weight_decay", "warmup_steps"):
            not_negative(f"optimizer.{name}", getattr(self, name))
        one_of("optimizer.lr_scheduler_type", self.lr_scheduler_type, get_args(Schedule))

    @cached_property
    def per_rollout(self) -> int:
        """Number of updates per rollout."""
        return self.num_iterations * self.minibatches

    @cached_property
    def off_policy(self) -> bool:
        """True if the policy may change between sampling a rollout and an update on it."""
        return self.overlap or self.per_rollout > 1

    @property
    def automatic(self) -> bool:
        """True if Lightning's automatic optimisation can make the updates."""
        return not self.off_policy and self.microbatch_size is None and self.max_grad_norm is None

    def minibatch_rows(self, completions: int) -> Iterator[Tensor]:
        """Yield the rows of the completions that each update learns from.

        Each pass splits all completions at random, with torch's global generator, into minibatches
        whose sizes differ by at most 1.
        """
        if completions < self.minibatches:
            raise ValueError(
                f"optimizer.minibatches = {self.minibatches}, but this batch has only "
                f"{completions} completions. Use a larger batch, a larger "
                "generation.num_generations or fewer minibatches."
            )
        for _ in range(self.num_iterations):
            # A single minibatch needs no shuffling, and draws no random numbers.
            shuffled = self.minibatches > 1
            rows = torch.randperm(completions) if shuffled else torch.arange(completions)
            yield from rows.tensor_split(self.minibatches)


def adamw(module: LightningModule, config: OptimizerConfig) -> dict[str, Any]:
    """Return AdamW on a module's trainable parameters with its schedule, in Lightning's format."""
    steps = _number_of_updates(module, config)
    trainable = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    warmup = max(1, config.warmup_steps)
    theirs: Any = get_scheduler(config.lr_scheduler_type, optimizer, warmup, steps + 1)
    (share,) = theirs.lr_lambdas
    schedule = LambdaLR(optimizer, lambda step: share(step + 1))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _number_of_updates(module: LightningModule, config: OptimizerConfig) -> int:
    """Return the number of updates of the whole training, from the trainer's limits.

    0 for a constant schedule. With `optimizer.overlap` there is one update less.
    """
    if config.lr_scheduler_type.startswith("constant"):
        return 0
    trainer = module.trainer
    rollouts = trainer.estimated_stepping_batches  # does not count several updates per rollout
    if not 0 <= rollouts < math.inf:
        raise misconfigured(
            trainer,
            f"optimizer.lr_scheduler_type = {config.lr_scheduler_type!r} needs the number of "
            "training steps, which is unknown here. Pass max_steps to the Trainer, or max_epochs "
            "and a dataloader with a length, or use 'constant_with_warmup'.",
        )
    each = config.per_rollout
    number = int(rollouts) * each
    if trainer.max_steps == -1:
        return number
    return min(number, math.ceil(trainer.max_steps / each) * each)  # checked after each rollout


def step_optimizer(
    module: LightningModule, microbatches: Iterable[dict[str, Tensor]], max_grad_norm: float | None
) -> dict[str, Tensor]:
    """Make one update with the summed gradients of microbatches; return their summed terms.

    If the loss is not finite, on any rank, the policy stays as it is.
    """
    optimizer: Any = module.optimizers()
    schedule: Any = module.lr_schedulers()
    optimizer.zero_grad()
    detached = []
    for terms in microbatches:
        module.manual_backward(terms["loss"])
        detached.append({name: value.detach() for name, value in terms.items()})
    terms = {name: torch.stack([each[name] for each in detached]).sum() for name in detached[0]}
    fail_together(partial(check_loss, terms))
    module.clip_gradients(optimizer, max_grad_norm, "norm")
    optimizer.step()
    schedule.step()
    return terms


def check_loss(terms: Mapping[str, Tensor]) -> None:
    """Raise if the loss is not finite: an update would make all weights NaN."""
    if not torch.isfinite(terms["loss"]):
        values = ", ".join(f"{name} = {float(value.detach()):.3g}" for name, value in terms.items())
        raise RuntimeError(
            f"the loss of this step is not finite ({values}), and the policy was not updated. "
            "Resume from the last checkpoint with a lower optimizer.learning_rate, with "
            "optimizer.max_grad_norm, or in float32. If a reward is extreme, bound it."
        )
