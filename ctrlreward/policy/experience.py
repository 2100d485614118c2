"""The data of a training step: rollouts waiting for rewards, then with advantages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ctrlreward.policy.prompt_batches import Prompt
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.policy.value import Estimates
from ctrlreward.reward import AnyReward, RewardBatch
from ctrlreward.samples import Samples


class PolicyOutput(NamedTuple):
    """Outputs of the policy for the tokens of a rollout.

    Attributes:
        log_probs: Log-probability of each token, 0 where masked, shape (n, tokens).
        values: Expected return before each token, shape (n, tokens); None without a value head.
    """

    log_probs: Tensor
    values: Tensor | None


@dataclass(frozen=True)
class PendingRollout:
    """A rollout whose rewards may still be computing.

    Attributes:
        samples: The n texts, with all columns.
        rollout: The completions' tokens.
        wait_for_scores: Returns the rewards, or raises the scorer's exception.
        seconds: Duration of sampling.
    """

    samples: Samples
    rollout: Rollout
    wait_for_scores: Callable[[], RewardBatch]
    seconds: float

    @staticmethod
    def start(
        prompts: Samples,
        inputs: Sequence[Prompt],
        sample: Callable[[Sequence[Prompt]], Rollout],
        reward: AnyReward,
        overlap: bool,
    ) -> PendingRollout:
        """Sample completions and arrange their scoring.

        Args:
            prompts: n samples with prompts.
            inputs: The n prompts as the policy reads them.
            sample: Returns one completion per prompt.
            reward: Scores the texts.
            overlap: Whether to submit the texts to the reward's worker now; otherwise
                `wait_for_scores` scores them.
        """
        started = time.perf_counter()
        rollout = sample(inputs)
        seconds = time.perf_counter() - started
        samples = prompts.completed(rollout.completions)
        score = reward.submit(samples).result if overlap else partial(reward, samples)
        return PendingRollout(samples, rollout, score, seconds)

    def metrics(self, waited: float, step_seconds: float) -> dict[str, float]:
        """Return the metrics of sampling and scoring.

        Args:
            waited: Seconds that the step waited for the rewards.
            step_seconds: Duration of the step.
        """
        mask = self.rollout.mask
        return {
            "rollout/length": float(mask.sum(dim=1).mean()),
            "rollout/truncated": 1 - float(self.rollout.ended.float().mean()),
            "rollout/tokens_per_second": float(mask.sum()) / self.seconds,
            "time/rollout_share": self.seconds / step_seconds,
            "time/reward_share": waited / step_seconds,
        }


@dataclass(frozen=True)
class PendingExperience:
    """A step's experience before its rewards have arrived.

    Attributes:
        sampled: The completions to learn from.
        greedy: The greedy completion of each prompt, if that is the baseline.
        output: Outputs of the policy that sampled; None if the policy cannot change before the
            rewards arrive.
    """

    sampled: PendingRollout
    greedy: PendingRollout | None
    output: PolicyOutput | None


@dataclass(frozen=True)
class Experience:
    """Completions with everything that stays fixed while the policy is updated on them.

    Attributes:
        rollout: n completions.
        advantages: Shape (n,), or (n, tokens) if each token has its own.
        mask: 1 on the tokens to learn from, shape (n, tokens).
        reference: Log-probabilities under the reference policy (`Objective.reference`), shape
            (n, tokens).
        old: Log-probabilities under the policy that sampled, shape (n, tokens); None if the only
            update is made by that same policy.
        estimates: Values at sampling and their targets; None without a value head.
    """

    rollout: Rollout
    advantages: Tensor
    mask: Tensor
    reference: Tensor
    old: Tensor | None
    estimates: Estimates | None = None

    def __len__(self) -> int:
        return len(self.advantages)

    def __getitem__(self, rows: Tensor) -> Experience:
        """Select completions by row."""
        rollout, rows = self.rollout[rows], rows.to(self.mask.device)
        return Experience(
            rollout,
            self.advantages[rows],
            self.mask[rows],
            self.reference[rows],
            None if self.old is None else self.old[rows],
            None if self.estimates is None else self.estimates[rows],
        )
