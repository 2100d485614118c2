"""What a policy learns from: a rollout with its advantages, and how it is dealt out to updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ctrlreward.policy.rollouts import Rollout
from ctrlreward.policy.value import Estimates


@dataclass(frozen=True)
class Experience:
    """Completions and all that stays as it is while they are learned from.

    Attributes:
        rollout: n completions.
        advantages: Shape (n,), or (n, tokens) where each token has its own.
        mask: 1 on the tokens that are learned from, shape (n, new).
        reference: Log-probabilities under the untuned model, shape (n, new).
        old: Log-probabilities under the policy that sampled, shape (n, new); None where the
            policy is still that one at the only update.
        estimates: What values were and should be; None without a value head.
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
        """Some of the completions, by their places."""
        return Experience(
            self.rollout[rows],
            self.advantages[rows],
            self.mask[rows],
            self.reference[rows],
            None if self.old is None else self.old[rows],
            None if self.estimates is None else self.estimates[rows],
        )


@dataclass(frozen=True)
class Updates:
    """How a rollout is dealt out.

    Args:
        epochs: How often it is learned from.
        minibatches: Updates that an epoch deals the completions to.
        microbatch_size: Completions per backward pass; None: all of an update.
        gradient_clip: Longest gradient (norm); None: any.
        overlap: Whether a rollout is scored while the one before it is learned from.

    Raises:
        ValueError: A number that is not positive.
    """

    epochs: int = 1
    minibatches: int = 1
    microbatch_size: int | None = None
    gradient_clip: float | None = None
    overlap: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches", "microbatch_size", "gradient_clip"):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise ValueError(f"{name} = {number}: give a positive number")

    @property
    def per_rollout(self) -> int:
        """How many a rollout makes."""
        return self.epochs * self.minibatches

    @property
    def are_off_policy(self) -> bool:
        """Whether any of them is of another policy than the one that sampled."""
        return self.overlap or self.per_rollout > 1

    @property
    def are_lightnings(self) -> bool:
        """Whether Lightning's automatic optimisation can make them: all is left as it is."""
        return self == Updates()

    def deal(self, completions: int) -> Iterator[Tensor]:
        """The completions' places that each update learns from.

        Each epoch deals all completions to its minibatches at random, by torch's global
        generator, as evenly as they can be.

        Raises:
            ValueError: There are fewer completions than minibatches.
        """
        if completions < self.minibatches:
            raise ValueError(
                f"minibatches = {self.minibatches}: this batch has only {completions} completions; "
                "give larger batches, a larger group_size or fewer minibatches"
            )
        for _ in range(self.epochs):
            # One minibatch keeps the order, and leaves the generator as it was.
            several = self.minibatches > 1
            places = torch.randperm(completions) if several else torch.arange(completions)
            yield from places.tensor_split(self.minibatches)

    def parts(self, completions: int) -> tuple[Tensor, ...]:
        """The places of each backward pass's completions, in order."""
        return torch.arange(completions).split(self.microbatch_size or completions)
