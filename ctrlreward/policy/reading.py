"""What a policy, and the value head on its states, think of what was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from peft import PeftModel
from torch import Tensor

from ctrlreward.policy.experience import Updates
from ctrlreward.policy.rollouts import Rollout, log_probs_after, states_before
from ctrlreward.policy.value import ValueHead


class Reading(NamedTuple):
    """Of the completions' tokens, each of shape (n, tokens), with gradients where they are on.

    Attributes:
        log_probs: 0 where masked.
        values: What is expected before each token; None without a value head.
    """

    log_probs: Tensor
    values: Tensor | None


@dataclass(frozen=True)
class Reader:
    """Reads rollouts; the policy's states serve both its output layer and the value head.

    Args:
        policy: With its adapter.
        value_head: None: there are no values.
        temperature: Of sampling.
    """

    policy: PeftModel
    value_head: ValueHead | None
    temperature: float

    def read(self, rollout: Rollout) -> Reading:
        """In one forward pass."""
        states = states_before(self.policy, rollout)
        values = None if self.value_head is None else self.value_head(states)
        return Reading(log_probs_after(self.policy, states, rollout, self.temperature), values)

    def read_in_parts(self, rollout: Rollout, updates: Updates) -> Reading:
        """No more completions at once than a backward pass takes."""
        parts = [self.read(rollout[p]) for p in updates.parts(len(rollout.completions))]
        values = [part.values for part in parts if part.values is not None]
        return Reading(
            torch.cat([part.log_probs for part in parts]), torch.cat(values) if values else None
        )
