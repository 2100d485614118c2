"""Turning rollouts and rewards into experience, and experience into losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor

from ctrlreward.functional.policy import token_weights
from ctrlreward.policy.distributed import share_of_mean
from ctrlreward.policy.experience import Experience, PolicyOutput
from ctrlreward.policy.model import reference_policy
from ctrlreward.policy.objectives import (
    Objective,
    advantages_over_ranks,
    loss_terms,
    loss_weights,
)
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Generation, Rollout, log_probs_from_states, states_before
from ctrlreward.policy.value import Critic, ValueHead, add_value_loss, estimate_advantages


@dataclass(frozen=True)
class Learner:
    """A policy with its objective, independent of the trainer.

    With several ranks every rank has to make the same calls.

    Args:
        policy: The language model with its adapter.
        value_head: Reads the policy's hidden states; None if no values are needed.
        objective: The algorithm.
        critic: Options of the value head.
        optimizer: How rollouts are split into updates.
        generation: How completions were sampled.
    """

    policy: PeftModel
    value_head: ValueHead | None
    objective: Objective
    critic: Critic
    optimizer: OptimizerConfig
    generation: Generation

    def forward(self, rollout: Rollout) -> PolicyOutput:
        """Compute log-probabilities and values in one forward pass, with gradients if enabled."""
        states = states_before(self.policy, rollout)
        values = None if self.value_head is None else self.value_head(states)
        temperature = self.generation.temperature
        return PolicyOutput(
            log_probs_from_states(self.policy, states, rollout, temperature), values
        )

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> PolicyOutput:
        """Compute the same without gradients and dropout, a microbatch at a time."""
        self.policy.eval()
        batches = self.optimizer.microbatch_rows(len(rollout.completions))
        outputs = [self.forward(rollout[rows]) for rows in batches]
        values = [output.values for output in outputs if output.values is not None]
        return PolicyOutput(
            torch.cat([output.log_probs for output in outputs]),
            torch.cat(values) if values else None,
        )

    def experience(
        self,
        rollout: Rollout,
        rewards: Tensor,
        greedy: Tensor | None = None,
        output: PolicyOutput | None = None,
    ) -> Experience:
        """Compute advantages and everything else that stays fixed during the updates.

        Args:
            rollout: n completions; those of one prompt are consecutive.
            rewards: NaN where a sample failed, shape (n,).
            greedy: Reward of each prompt's greedy completion, shape (prompts,), if that is the
                baseline.
            output: Output of the policy that sampled; None if it is the current policy.
        """
        choices = self.objective.choices
        with reference_policy(self.policy):
            reference = self.evaluate(rollout).log_probs
        if output is None and (self.optimizer.off_policy or self.value_head):
            output = self.evaluate(rollout)
        device = rollout.mask.device
        estimates = None
        if output is None or output.values is None:
            num_generations = self.generation.num_generations
            advantages = advantages_over_ranks(choices, rewards, num_generations, greedy)
        else:
            whiten = choices.scale == "batch"
            advantages, estimates = estimate_advantages(
                self.critic, rewards.to(device), output.values, rollout.mask, whiten
            )
        mask = rollout.mask
        if self.objective.mask_truncated_completions:
            mask = mask * rollout.ended[:, None]
        old = output.log_probs if output is not None and self.optimizer.off_policy else None
        return Experience(rollout, advantages.to(device), mask, reference, old, estimates)

    def weights(self, experience: Experience) -> dict[str, Tensor]:
        """Compute the token weights of an update, each of shape (n, tokens).

        Returns:
            Those of `objectives.loss_weights`, and `"value"` with a value head.
        """
        share = share_of_mean(experience.mask.sum())
        longest = self.generation.max_completion_length
        weights = loss_weights(self.objective.choices, experience.mask, longest, share)
        if experience.estimates is not None:
            valued = experience.mask * experience.estimates.mask
            weights["value"] = share_of_mean(valued.sum()) * token_weights(valued)
        return weights

    def terms(
        self, experience: Experience, weights: dict[str, Tensor], beta: float
    ) -> dict[str, Tensor]:
        """Compute the loss and the logged terms of an update, or of one of its microbatches.

        Args:
            experience: n completions.
            weights: The rows of `weights` that belong to them.
            beta: Weight of the KL term.

        Returns:
            See `objectives.loss_terms`; with a value head also `value_loss`.
        """
        self.policy.train()  # the adapter's dropout, and gradient checkpointing
        log_probs, values = self.forward(experience.rollout)
        terms = loss_terms(self.objective.choices, log_probs, experience, weights, beta)
        if values is None or experience.estimates is None:
            return terms
        return add_value_loss(self.critic, terms, values, experience.estimates, weights["value"])

    def microbatch_terms(self, experience: Experience, beta: float) -> Iterator[dict[str, Tensor]]:
        """Yield the `terms` of each microbatch of an update; they sum to those of the update."""
        weights = self.weights(experience)
        for rows in self.optimizer.microbatch_rows(len(experience)):
            part = {name: weight[rows.to(weight.device)] for name, weight in weights.items()}
            yield self.terms(experience[rows], part, beta)
