"""Turning rollouts and rewards into experience, and experience into losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor

from ctrlreward.functional.policy import value_loss
from ctrlreward.policy.model import reference_policy
from ctrlreward.policy.objectives import (
    Experience,
    Objective,
    completion_advantages,
    loss_terms,
    loss_weights,
)
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Generation, PolicyOutput, Rollout, policy_output
from ctrlreward.policy.value import Critic, ValueHead, estimate_advantages
from ctrlreward.ranks import gather_values
from ctrlreward.scorers.base import Scores


@dataclass(frozen=True)
class Learner:
    """A policy with its objective, without a trainer; every rank has to make the same calls."""

    policy: PeftModel
    value_head: ValueHead | None
    objective: Objective
    critic: Critic
    optimizer: OptimizerConfig
    generation: Generation

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> PolicyOutput:
        """Compute log-probabilities and values without dropout, a microbatch at a time."""
        self.policy.eval()
        size, rows = self.optimizer.microbatch_size, torch.arange(len(rollout.completions))
        outputs = [
            policy_output(self.policy, part, self.generation.temperature, self.value_head)
            for part in ([rollout] if size is None else map(rollout.__getitem__, rows.split(size)))
        ]
        log_probs, values = zip(*outputs, strict=True)
        return PolicyOutput(torch.cat(log_probs), torch.cat(values) if self.value_head else None)

    def experience(
        self,
        rollout: Rollout,
        rewards: Tensor,
        greedy: Tensor | None = None,
        output: PolicyOutput | None = None,
        credit: Sequence[Scores] | None = None,
    ) -> Experience:
        """Compute advantages and everything else that stays fixed during the updates.

        Baselines and deviations are over the completions of all ranks. Completions of one
        prompt are consecutive in the rollout. `rewards` are NaN if a sample failed, shape (n,),
        in float64, so that squares of large ones are finite; `greedy`, shape (prompts,), are the
        rewards of greedy completions, if they are the baseline.
        `output` is of the policy that sampled; None if it is the current policy. `credit` are the
        rewards of each completion's tokens, for values; None assigns them to the last token.
        """
        choices, mask = self.objective.choices, rollout.mask
        with reference_policy(self.policy):
            reference = self.evaluate(rollout).log_probs
        if output is None and (self.optimizer.off_policy or self.value_head):
            output = self.evaluate(rollout)
        estimates = None
        if output is None or output.values is None:
            all_rewards, own = gather_values(rewards)
            groups = torch.arange(len(all_rewards)) // self.generation.num_generations
            all_greedy = None if greedy is None else gather_values(greedy)[0]
            values = completion_advantages(choices, all_rewards, groups, all_greedy)[own]
            advantages = values.float()
        else:
            whiten = choices.scale == "batch"
            tokens = torch.zeros_like(mask)
            for row, given in zip(tokens, credit or (), strict=False):
                row[: len(given)] = torch.from_numpy(given)
            advantages, estimates = estimate_advantages(
                self.critic, rewards.float().to(mask.device), output.values, mask, whiten, tokens
            )
        if self.objective.mask_truncated_completions:
            mask = mask * rollout.ended[:, None]
        old = output.log_probs if output is not None and self.optimizer.off_policy else None
        return Experience(rollout, advantages.to(mask.device), mask, reference, old, estimates)

    def terms(self, experience: Experience, beta: float) -> Iterator[dict[str, Tensor]]:
        """Yield the loss and the logged terms of each microbatch; their sums are the terms of the
        update.

        See `objectives.loss_terms`. With a value head `loss` has the value loss as well, whose
        gradient reaches the adapter, and `value_loss` is that loss without gradients.
        """
        choices, options = self.objective.choices, self.generation
        size = self.optimizer.microbatch_size
        weights = loss_weights(choices, experience, options.max_completion_length)
        for rows in torch.arange(n := len(experience.mask)).split(size or n):
            part, of_part = experience, weights
            if size is not None:
                part = experience[rows]
                of_part = {name: each[rows.to(each.device)] for name, each in weights.items()}
            self.policy.train()  # the adapter's dropout, and gradient checkpointing
            log_probs, values = policy_output(
                self.policy, part.rollout, options.temperature, self.value_head
            )
            terms = loss_terms(choices, log_probs, part, of_part, beta)
            if values is not None and part.estimates is not None:
                given = part.estimates
                costs = value_loss(values, given.values, given.returns, self.critic.clip)
                loss = (of_part["value"] * costs).sum()
                terms["loss"] = terms["loss"] + self.critic.coef * loss
                terms["value_loss"] = loss.detach()
            yield terms
