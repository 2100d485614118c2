"""How a policy's weights are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor


def adamw(
    parameters: Iterable[torch.nn.Parameter], learning_rate: float, warmup_steps: int
) -> OptimizerLRSchedulerConfig:
    """AdamW on the parameters that learn, with a linear warm-up, as Lightning takes it.

    Args:
        parameters: Frozen ones are left out.
        learning_rate: After the warm-up.
        warmup_steps: Updates over which it rises.
    """
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup_steps))
    )
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }


def step(
    module: pl.LightningModule,
    parts: Iterable[Callable[[], dict[str, Tensor]]],
    gradient_clip: float | None,
) -> dict[str, Tensor]:
    """One step of a module's only optimizer and schedule, by hand.

    Args:
        module: Under manual optimisation.
        parts: Each makes the terms of a part of the update, of which `loss` has gradients.
        gradient_clip: Longest gradient (norm); None: any.

    Returns:
        The sum of the parts' terms.
    """
    optimizer: Any = module.optimizers()  # one of each, as configured
    schedule: Any = module.lr_schedulers()
    optimizer.zero_grad()
    made = []
    for part in parts:
        terms = part()
        module.manual_backward(terms["loss"])
        made.append({name: value.detach() for name, value in terms.items()})
    module.clip_gradients(optimizer, gradient_clip, "norm")
    optimizer.step()
    schedule.step()
    return {name: torch.stack([t[name] for t in made]).sum() for name in made[0]}
