"""A small `PolicyTuner` in a test: algorithms, an adapter with an effect, records of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ctrlreward import Samples
from ctrlreward.policy.rollouts import Rollout

BATCH = Samples(texts=["ab", "cd", "f"])

# As docs/policy_tuner.md has them.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"baseline": "group", "scale": "group", "aggregation": "sequence"},
    "dr_grpo": {"baseline": "group", "scale": "none", "aggregation": "constant"},
    "dapo": {"baseline": "group", "scale": "group", "aggregation": "token"},
    "rloo": {"baseline": "leave_one_out", "scale": "none", "aggregation": "sum"},
    "reinforce": {"baseline": "batch", "scale": "none", "aggregation": "sum"},
    "reinforce++": {"baseline": "batch", "scale": "batch", "aggregation": "token"},
}


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


def read_by(rollout: Rollout) -> list[list[int]]:
    """Token ids of the prompts of a rollout, without padding."""
    width = rollout.ids.shape[1] - rollout.mask.shape[1]
    rows = zip(rollout.ids[:, :width], rollout.attention[:, :width].bool(), strict=True)
    return [ids[read].tolist() for ids, read in rows]


def written_by(rollout: Rollout) -> list[list[int]]:
    """Token ids of the completions of a rollout, with the end token if there is one."""
    new = rollout.ids[:, -rollout.mask.shape[1] :]
    return [ids[mask.bool()].tolist() for ids, mask in zip(new, rollout.mask, strict=True)]


def logged(module: Any) -> dict[str, float]:
    """Record what a module logs outside a trainer."""
    values: dict[str, float] = {}
    module.log = lambda name, value, **_: values.update({name: value})
    return values


def sampled(module: Any) -> list[Rollout]:
    """Record the rollouts of a module."""
    rollouts: list[Rollout] = []
    sample = module.rollout
    module.rollout = lambda p, t=None: rollouts.append(sample(p, t)) or rollouts[-1]
    return rollouts


def learned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Record the advantages of each rollout that a module learns from."""
    from ctrlreward.policy import tuner

    advantages: list[torch.Tensor] = []
    compute = tuner.completion_advantages
    record = lambda *a: advantages.append(compute(*a)) or advantages[-1]  # noqa: E731
    monkeypatch.setattr(tuner, "completion_advantages", record)
    return advantages
