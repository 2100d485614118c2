"""Optimizer of a policy: AdamW, learning-rate schedules, updates out of microbatches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ctrlreward.lightning_package import LightningModule, misconfigured
from ctrlreward.policy.experience import Schedule, Updates


def adamw(
    parameters: Iterable[torch.nn.Parameter], updates: Updates, steps: int | None
) -> dict[str, Any]:
    """Return AdamW on the trainable parameters with its schedule, in Lightning's format.

    Args:
        parameters: All parameters; frozen ones are skipped.
        updates: Learning rate, warm-up and schedule.
        steps: Number of updates of the whole training; None if the schedule is constant.
    """
    trainable = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=updates.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate(updates.schedule, step, updates.warmup_steps, steps or 0)
    )
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }


def rate(schedule: Schedule, step: int, warmup_steps: int, steps: int) -> float:
    """Return the share of the learning rate that an update is made with.

    Those of `transformers.get_scheduler`, one step ahead: no update has the rate 0.

    Args:
        schedule: After the warm-up the rate is constant, or falls towards 0 at update `steps`.
        step: Number of updates before this one.
        warmup_steps: Updates over which the rate rises linearly.
        steps: Number of updates of the whole training.

    Example:
        >>> [rate("linear", step, 2, 5) for step in range(5)]
        [0.5, 1.0, 0.75, 0.5, 0.25]
        >>> [rate("constant", step, 2, 5) for step in range(5)]
        [0.5, 1.0, 1.0, 1.0, 1.0]
    """
    warmup = max(1, warmup_steps)
    if step + 1 < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step + 1 - warmup) / max(1, steps + 1 - warmup))
    return 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2


def number_of_updates(module: LightningModule, updates: Updates) -> int | None:
    """Return the number of updates of the whole training, from the trainer's limits.

    None for a constant schedule, which needs none. With `updates.overlap` one rollout fewer is
    learned from.

    Raises:
        MisconfigurationException: The number of batches is unknown, and there is no `max_steps`.
    """
    if updates.schedule == "constant":
        return None
    trainer = module.trainer
    rollouts = trainer.estimated_stepping_batches  # does not know of several updates per rollout
    if not 0 <= rollouts < math.inf:
        raise misconfigured(
            trainer,
            f"updates.schedule = {updates.schedule!r} needs the number of training steps, which is "
            "unknown here: give the Trainer max_steps, or max_epochs and a dataloader with a "
            "length, or set the schedule to 'constant'",
        )
    each = updates.per_rollout
    number = int(rollouts) * each
    if trainer.max_steps == -1:
        return number
    return min(number, math.ceil(trainer.max_steps / each) * each)  # checked after each rollout


def step_optimizer(
    module: LightningModule,
    microbatches: Iterable[dict[str, Tensor]],
    gradient_clip: float | None,
) -> dict[str, Tensor]:
    """Make one update with the summed gradients of some microbatches.

    Args:
        module: A module under manual optimisation, with one optimizer and one schedule.
        microbatches: The terms of each; `loss` has gradients. The next one is computed after the
            backward pass of the previous one.
        gradient_clip: Largest gradient norm; None for no clipping.

    Returns:
        The terms, summed over the microbatches, without gradients.
    """
    optimizer: Any = module.optimizers()
    schedule: Any = module.lr_schedulers()
    optimizer.zero_grad()
    detached = []
    for terms in microbatches:
        module.manual_backward(terms["loss"])
        detached.append({name: value.detach() for name, value in terms.items()})
    module.clip_gradients(optimizer, gradient_clip, "norm")
    optimizer.step()
    schedule.step()
    return {name: torch.stack([terms[name] for terms in detached]).sum() for name in detached[0]}
