"""Optimizer of a policy: AdamW with a learning-rate schedule of transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from ctrlreward.arguments import not_negative, positive
from ctrlreward.lightning_package import LightningModule, misconfigured

Schedule: TypeAlias = Literal["constant", "constant_with_warmup", "linear", "cosine"]


@dataclass(frozen=True)
class OptimizerConfig:
    """The settings of AdamW, and gradient checkpointing.

    Args:
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
    """

    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    warmup_steps: int = 5
    lr_scheduler_type: Schedule = "constant_with_warmup"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        positive("optimizer.learning_rate", self.learning_rate)
        not_negative("optimizer.warmup_steps", self.warmup_steps)


def adamw(module: LightningModule, config: OptimizerConfig) -> dict[str, Any]:
    """Return AdamW on a module's trainable parameters with its schedule, in Lightning's format."""
    steps: float = 0
    if not config.lr_scheduler_type.startswith("constant"):
        steps = module.trainer.estimated_stepping_batches
        if not 0 <= steps < math.inf:
            raise misconfigured(
                module.trainer,
                f"optimizer.lr_scheduler_type = {config.lr_scheduler_type!r} needs the number of "
                "training steps, which is unknown here. Pass max_steps to the Trainer, or "
                "max_epochs and a dataloader with a length, or use 'constant_with_warmup'.",
            )
    trainable = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    warmup = max(1, config.warmup_steps)
    theirs: Any = get_scheduler(config.lr_scheduler_type, optimizer, warmup, int(steps) + 1)
    (share,) = theirs.lr_lambdas
    schedule = LambdaLR(optimizer, lambda step: share(step + 1))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
