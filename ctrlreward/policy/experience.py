"""The data of a training step: rollouts waiting for rewards, then with advantages, then updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from ctrlreward.arguments import one_of, positive
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.policy.value import Estimates
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples

Schedule: TypeAlias = Literal["constant", "linear", "cosine"]


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
        sample: Callable[[Sequence[str]], Rollout],
        reward: Reward,
        overlap: bool,
    ) -> PendingRollout:
        """Sample completions and arrange their scoring.

        Args:
            prompts: n samples with prompts.
            sample: Returns one completion per prompt.
            reward: Scores the texts.
            overlap: Whether to submit the texts to the reward's worker now; otherwise
                `wait_for_scores` scores them.
        """
        started = time.perf_counter()
        rollout = sample(prompts.require("prompts", "PolicyTuner"))
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


@dataclass(frozen=True)
class Updates:
    """Optimisation: how a rollout is split into updates, and the optimizer's settings.

    With the defaults of the first five a rollout makes one update, by Lightning's automatic
    optimisation. If one of them is set, the module updates by manual optimisation.

    Args:
        epochs: Passes over each rollout.
        minibatches: Updates per epoch.
        microbatch_size: Completions per backward pass; gradients are summed to the same update.
            None: all completions of an update at once.
        gradient_clip: Largest gradient norm of an update; None for no clipping. Use it in place of
            the trainer's `gradient_clip_val` if the module updates by manual optimisation.
        overlap: Whether to score a rollout while the policy learns from the previous one. The
            importance ratio corrects for the delay of one step.
        learning_rate: Learning rate of AdamW after the warm-up.
        warmup_steps: Updates over which the learning rate rises linearly.
        schedule: After the warm-up the learning rate is `"constant"`, or falls to 0 at the end of
            training in a line (`"linear"`) or half a cosine (`"cosine"`). The end is the trainer's
            `max_steps`, or `max_epochs` of a dataloader with a length.
        gradient_checkpointing: Whether to recompute activations in the backward pass instead of
            keeping them: less memory, more time, the same gradients.

    Raises:
        ValueError: A number is not positive, or the schedule is unknown.

    Example:
        >>> Updates(epochs=2, minibatches=4).per_rollout
        8
        >>> Updates(learning_rate=1e-5, schedule="cosine").automatic
        True
        >>> Updates(schedule="cos")
        Traceback (most recent call last):
        ValueError: updates.schedule = 'cos': give one of ... (did you mean 'cosine'?)
    """

    epochs: int = 1
    minibatches: int = 1
    microbatch_size: int | None = None
    gradient_clip: float | None = None
    overlap: bool = False
    learning_rate: float = 1e-4
    warmup_steps: int = 5
    schedule: Schedule = "constant"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches", "microbatch_size", "gradient_clip", "learning_rate"):
            positive(f"updates.{name}", getattr(self, name))
        one_of("updates.schedule", self.schedule, get_args(Schedule))

    @property
    def per_rollout(self) -> int:
        """Number of updates per rollout."""
        return self.epochs * self.minibatches

    @property
    def off_policy(self) -> bool:
        """True if the policy may change between sampling a rollout and an update on it."""
        return self.overlap or self.per_rollout > 1

    @property
    def automatic(self) -> bool:
        """True if Lightning's automatic optimisation can make the updates."""
        return not self.off_policy and self.microbatch_size is None and self.gradient_clip is None

    def minibatch_rows(self, completions: int) -> Iterator[Tensor]:
        """Yield the rows of the completions that each update learns from.

        Each epoch splits all completions at random, with torch's global generator, into
        minibatches whose sizes differ by at most 1.

        Raises:
            ValueError: There are fewer completions than minibatches.
        """
        if completions < self.minibatches:
            raise ValueError(
                f"updates.minibatches = {self.minibatches}: this batch has only {completions} "
                "completions; use a larger batch, a larger generation.group_size or fewer "
                "minibatches"
            )
        for _ in range(self.epochs):
            # A single minibatch needs no shuffling, and draws no random numbers.
            shuffled = self.minibatches > 1
            rows = torch.randperm(completions) if shuffled else torch.arange(completions)
            yield from rows.tensor_split(self.minibatches)

    def microbatch_rows(self, completions: int) -> tuple[Tensor, ...]:
        """Return the rows of each backward pass's completions, in order."""
        return torch.arange(completions).split(self.microbatch_size or completions)
