"""Metrics and evidence of a validation, for all rules.

The evidence of a metric is its value for each held-out prompt, in the order of the prompts: the
mean score of the prompt's completions, or the jackknife value of a figure of the whole corpus
(`ctrlreward.functional.sequential.jackknife_values`); NaN if all completions failed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from ctrlreward.arguments import Mode, counted, did_you_mean
from ctrlreward.functional.sequential import (
    Floats,
    PairedDifference,
    PromptScores,
    level_of_test,
    paired_difference,
)

Evidence: TypeAlias = Mapping[str, Sequence[float] | npt.NDArray[np.floating[Any]]]
"""Logged key → one value for each prompt, shape (prompts,)."""


Bounds: TypeAlias = Sequence[float | None]
"""Smallest and largest value, both inclusive, None for no bound."""

ModeOf: TypeAlias = Callable[[str, Mode | None, str], Mode]
"""Key, its direction as given or None, name of the argument → its direction, as declared."""


class State:
    """State of a rule: a dataclass that becomes plain data and back."""

    @property
    def ended(self) -> bool:
        """Whether the last validation ended the run, or would have."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        plain: dict[str, Any] = _adapter(type(self)).dump_python(self, warnings=False)
        return plain

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore a state from `to_dict`, also after a round trip through JSON."""
        restored: Self = _adapter(cls).validate_python(dict(state))
        return restored


_adapter: Callable[[type], TypeAdapter[Any]] = cache(TypeAdapter)


@dataclass(frozen=True)
class Snapshot:
    """What a validation logged, made once for all rules that decide on it.

    Attributes:
        step: Training step.
        metrics: Logged key → last value, which may be older than this validation.
        fresh: Keys with a value of this validation.
        evidence: Key → one value for each held-out prompt.
        trained: Key that training logs, not validations → step of its last value. It is new to a
            rule that has not decided since.
    """

    step: int
    metrics: Mapping[str, float]
    fresh: Collection[str]
    evidence: Evidence = field(default_factory=dict)
    trained: Mapping[str, int] = field(default_factory=dict)

    def having(self, **values: float) -> Snapshot:
        """Return the snapshot with more new values."""
        return replace(self, metrics={**self.metrics, **values}, fresh={*self.fresh, *values})


@dataclass(frozen=True)
class Validation(State):
    """Validation kept by a rule, to compare later ones with it: a value by key, and by prompt.

    `prompts` maps a key to the digest of its prompts, where they are known (`PromptScores`).
    """

    step: int
    metrics: Mapping[str, float]
    evidence: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, step: int, metrics: Mapping[str, float], evidence: Evidence | None, keys: Iterable[str]
    ) -> Validation:
        """Return the values of some keys, with their evidence where there is any."""
        names = list(keys)
        by_prompt = evidence or {}
        values = {key: tuple(map(float, by_prompt[key])) for key in names if key in by_prompt}
        known = {
            key: digest for key in values if (digest := getattr(by_prompt[key], "prompts", ""))
        }
        return cls(step, {key: read(metrics, key) for key in names}, values, known)

    def rows(self) -> dict[str, PromptScores]:
        """Return the evidence with its prompts, as `of` takes it."""
        return {k: PromptScores(row, self.prompts.get(k, "")) for k, row in self.evidence.items()}

    def paired(self, other: Validation, key: str) -> tuple[Floats, Floats] | None:
        """Return both rows of evidence, shape (prompts,); None without, or of other prompts."""
        before, after = self.evidence.get(key), other.evidence.get(key)
        known = {side.prompts[key] for side in (self, other) if key in side.prompts}
        if before is None or after is None or len(before) != len(after) or len(known) > 1:
            return None
        return np.array(before), np.array(after)

    def differs(self, other: Validation, key: str, level: float) -> PairedDifference | None:
        """Return other - self with its interval; None without evidence of the same prompts."""
        rows = self.paired(other, key)
        return None if rows is None else paired_difference(rows[1], minus=rows[0], level=level)

    def change(self, other: Validation, key: str) -> float:
        """Return other - self: of the values, or by prompt if they failed on different prompts.

        The mean over the prompts that could be scored would rise if only the hard ones fail.
        """
        value = other.metrics[key] - self.metrics[key]
        rows = self.paired(other, key)
        if rows is None:
            return value
        before, after = rows
        both = np.isfinite(after - before)
        if np.array_equal(np.isnan(before), np.isnan(after)) or not both.any():
            return value
        return float((after - before)[both].mean())

    def failures(self, other: Validation, key: str) -> str:
        """Return the numbers of prompts that failed, in words; "" if none did."""
        rows = self.paired(other, key)
        if rows is None:
            return ""
        before, now = (int(np.isnan(row).sum()) for row in rows)
        return _failures(now, before)


def check_key(argument: str, given: object) -> None:
    """Raise a TypeError unless the argument is a string, as the keys of logged metrics are."""
    if not isinstance(given, str):
        raise TypeError(f"{argument} must be the key of a logged metric, got {given!r}")


def no_new_value(keys: Iterable[str], stale: Collection[str]) -> str:
    """Return the reason why no decision is made; "" if all keys have a new value."""
    old = [key for key in keys if key in stale]
    return f"no new value of {', '.join(old)}" if old else ""


class NotLogged(ValueError):
    """A key is not logged, or not yet."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def read(metrics: Mapping[str, float], key: str) -> float:
    """Return the value of a key; a `NotLogged` lists the logged keys if it is not one of them."""
    if key not in metrics:
        known = f"must be one of {sorted(metrics)}{did_you_mean(key, metrics)}"
        message = f"{key!r} is not logged, {known if metrics else 'nor is anything else'}"
        raise NotLogged(message, key)
    return metrics[key]


_LOSS = re.compile(r"(.*[/_])?loss(_step|_epoch)?")
_REWARD = re.compile(
    r"reward|reward/(total|shaped)|(rewards|val-core)/.*(?<!/std)|critic/(score|rewards)/mean"
)


def direction_of_name(key: str) -> Mode | None:
    """Return the better direction of the losses and rewards that trainers log.

    Rewards are `reward` and `rewards/…` of TRL, `val-core/…` of verl, `reward/total` of ours. None
    of any other key: its scorer declares the direction, or the user.

    Examples:
        >>> keys = ("eval_loss", "rewards/perplexity_reward/mean", "rewards/a/std", "perplexity")
        >>> [direction_of_name(key) for key in keys]
        ['min', 'max', None, None]
    """
    name = re.sub(r"^(eval|train)[_/]|/dataloader_idx_\d+$", "", key)
    if _LOSS.fullmatch(name):
        return "min"
    return "max" if _REWARD.fullmatch(name) and "/rejected" not in name else None


def chosen_level(level: float, k: int) -> float:
    """Return the level of the k-th comparison with the best of k earlier validations.

    The best of them depends on chance. A k-th of the level for each covers any choice.
    """
    return level_of_test(level, k) / k


def describe(difference: PairedDifference) -> str:
    """Return a difference in words."""
    value, low, high, prompts, failed = difference
    without = _failures(*failed)
    if math.isinf(low) and math.isinf(high):
        return f"difference {value:+z.4f}, too few prompts ({prompts}) for an interval{without}"
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):  # other prompts may differ
        return f"difference {value:+z.4f}, for each of {prompts} prompts{without}"
    ends = f"{low:+z.4f} to {high:+z.4f}"
    return f"difference {value:+z.4f}, {ends}, with {prompts} prompts{without}"


def _failures(now: int, before: int) -> str:
    return f"; {counted(now, 'prompt')} failed, against {before}" if now or before else ""
