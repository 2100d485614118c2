"""A small `PolicyTuner` in a test: an adapter with an effect, and records of its steps."""

from __future__ import annotations

from typing import Any

import torch

from ctrlreward import Samples
from ctrlreward.policy.rollouts import Rollout

BATCH = Samples(texts=["ab", "cd", "f"])


def drift(model: Any, seed: int | None = None) -> Any:
    """Randomise the trained adapter in place: the policy then differs from its reference."""
    if seed is not None:
        torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B.default" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def trained_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}


def logged(module: Any) -> dict[str, float]:
    """Record what a module logs outside a trainer."""
    values: dict[str, float] = {}
    module.log = lambda name, value, **_: values.update({name: value})
    return values


def sampled(module: Any) -> list[Rollout]:
    """Record the rollouts of a module."""
    rollouts: list[Rollout] = []
    sample = module._sample
    module._sample = lambda p, t=None: rollouts.append(sample(p, t)) or rollouts[-1]
    return rollouts


def learned(module: Any) -> list[torch.Tensor]:
    """Record the advantages of each rollout that a module learns from."""
    advantages: list[torch.Tensor] = []
    compute = module._advantages
    module._advantages = lambda rewards: advantages.append(compute(rewards)) or advantages[-1]
    return advantages
