"""What a policy makes of completions and their rewards, and the loss of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctrlreward.functional.policy import token_weights
from ctrlreward.policy.across_ranks import share_of_mean
from ctrlreward.policy.experience import Experience, Updates
from ctrlreward.policy.objectives import Objective, advantages_on_all, terms_of, weigh
from ctrlreward.policy.reading import Reader, Reading
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.policy.value import Critic, estimate, with_values


@dataclass(frozen=True)
class Learner:
    """An objective, for a policy as it is now.

    Under several ranks each has to make the same calls.

    Args:
        reader: Reads with the policy.
        objective: What is wanted.
        critic: How values are learned, where the reader has a value head.
        updates: How rollouts are dealt out.
        group_size: Completions per prompt.
        max_new_tokens: The longest completion there can be.
        mask_truncated: Whether completions without an end are left out.
        kl_coef: Weight of the KL term.
    """

    reader: Reader
    objective: Objective
    critic: Critic
    updates: Updates
    group_size: int
    max_new_tokens: int
    mask_truncated: bool
    kl_coef: float

    def experience(
        self,
        rollout: Rollout,
        rewards: Tensor,
        greedy: Tensor | None = None,
        reading: Reading | None = None,
    ) -> Experience:
        """Completions with their advantages, and all that stays as it is in the updates.

        Args:
            rollout: n completions, those of one prompt side by side.
            rewards: NaN where a sample failed, shape (n,).
            greedy: Reward of each prompt's greedy completion, where that is the baseline.
            reading: Of the rollout by the policy that wrote it; None where that is this one.
        """
        with torch.no_grad():
            with self.reader.policy.disable_adapter():
                reference = self.reader.read_in_parts(rollout, self.updates).log_probs
            if reading is None and (self.updates.are_off_policy or self.reader.value_head):
                reading = self.reader.read_in_parts(rollout, self.updates)
        device = rollout.mask.device
        estimates = None
        if reading is None or reading.values is None:
            advantages = advantages_on_all(self.objective, rewards, self.group_size, greedy)
        else:
            whiten = self.objective.scale == "batch"
            advantages, estimates = estimate(
                self.critic, rewards.to(device), reading.values, rollout.mask, whiten
            )
        mask = rollout.mask * rollout.ended[:, None] if self.mask_truncated else rollout.mask
        old = reading.log_probs if reading is not None and self.updates.are_off_policy else None
        return Experience(rollout, advantages.to(device), mask, reference, old, estimates)

    def weights(self, experience: Experience) -> dict[str, Tensor]:
        """How much each token of an update counts, each of shape (n, tokens); see `weigh`."""
        share = share_of_mean(experience.mask.sum())
        weights = weigh(self.objective, experience.mask, self.max_new_tokens, share)
        if experience.estimates is not None:
            valued = experience.mask * experience.estimates.mask
            weights["value"] = share_of_mean(valued.sum()) * token_weights(valued)
        return weights

    def terms(self, experience: Experience, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The loss of all of an update or of a part, and what is logged of it; see `terms_of`."""
        current, values = self.reader.read(experience.rollout)
        terms = terms_of(self.objective, current, experience, weights, self.kl_coef)
        if values is None or experience.estimates is None:
            return terms
        return with_values(self.critic, terms, values, experience.estimates, weights["value"])
