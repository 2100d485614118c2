"""The decider of all trainers: a rule, applied once to each set of weights.

The same weights validated again, by another evaluation set, after a resume, inside a callback, are
not a new validation; and a value counts as new only if it was logged since the last decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from ctrlreward.arguments import did_you_mean
from ctrlreward.selection.metrics import Bounds, Evidence, ModeOf, renewed


def with_assigned(rule: Any, callback: object) -> Any:
    """Return a rule with the settings that were assigned to attributes of a callback."""
    names = {field.name for field in fields(rule)}
    return replace(rule, **{name: v for name, v in vars(callback).items() if name in names})


def stale_keys(
    logged: Mapping[str, float], validated: Collection[str], began: float, decided: float
) -> set[str]:
    """Return the keys without a new value, of `logged`, key → time of its last value.

    The keys that validations log are `validated`: they are new if logged since this one `began`.
    Other keys, of training, are new if they were logged since the last decision, at time `decided`.
    Time is whatever a trainer counts by: steps, or how often its metrics were looked at.
    """
    return {
        key
        for key, time in logged.items()
        if (time < began if key in validated else time <= decided)
    }


def check_declared(keys: Iterable[str], declared: Collection[str]) -> None:
    """Raise a ValueError for a key that is likely a misspelt one of those that scorers declare.

    Other keys that are not declared may be logged later, by someone else.
    """
    for key in keys:
        group, _, name = key.rpartition("/")
        names = [each[len(group) + 1 :] for each in declared if each.rpartition("/")[0] == group]
        hint = did_you_mean(name, names, f"'{group}/{{}}'".format)
        if key not in declared and hint:
            raise ValueError(f"{key!r} is not a score of this run{hint}")


class Decider:
    """A rule of `ctrlreward.selection` with its state, which a checkpoint contains.

    Attributes:
        rule: The rule, with the directions that the scorers of the run declare once it has begun.
        state: Its state.
        step: Training step of the last decision, -1 before.
        measures: Key → what its last value was measured on; with another, a new reference begins.
    """

    def __init__(self, rule: Any) -> None:
        self.rule: Any = rule
        self.state: Any = rule.start()
        self.step = -1
        self.measures: dict[str, str] = {}

    def begin(self, rule: Any, mode_of: ModeOf, ranges: Mapping[str, Bounds]) -> None:
        """Take the settings of a run. A state that no validation has changed starts anew."""
        self.rule = rule.directed(mode_of)
        check_declared(rule.keys, ranges)
        if self.step < 0:
            self.state = self.rule.start()

    def decide(
        self,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
        evidence: Evidence | None = None,
    ) -> Any:
        """Return the decision of the rule; the weights count as decided if it judged anything."""
        self.state = renewed(self.rule, self.state, self.measures, stale, evidence)
        after, decision = self.rule.update(self.state, step, metrics, stale, evidence)
        if after is not self.state:
            self.state = after
            self.step = step
        return decision

    def resume(self) -> Any:
        """Judge the last validation of a resumed run again, with the settings of this one."""
        self.state, decision = self.rule.resume(self.state)
        return decision

    def to_dict(self) -> dict[str, Any]:
        """Return state and last step as plain data."""
        return {**self.state.to_dict(), "decided": self.step, "measures": dict(self.measures)}

    def load(self, plain: Mapping[str, Any]) -> None:
        """Restore `to_dict`; keys of others are ignored."""
        self.step = plain.get("decided", -1)
        self.measures = dict(plain.get("measures", {}))
        self.state = type(self.rule.start()).from_dict(plain)


class Decides:
    """Callback of any trainer that decides by a rule.

    Attributes:
        rule: The rule; once a run has begun, with the directions that its scorers declare.
        state: State of the rule.
    """

    decider: Decider

    @property
    def rule(self) -> Any:
        """The rule that decides."""
        return self.decider.rule

    @property
    def state(self) -> Any:
        """The state of the rule."""
        return self.decider.state


class Keeps(Decides):
    """Callback that keeps checkpoints by a rule."""

    @property
    def selected_step(self) -> int | None:
        """Step of the selected checkpoint, None if no validation qualified."""
        return self.rule.best(self.state)

    @property
    def reason(self) -> str:
        """Reason for the selected checkpoint, and what it is not distinguishable from."""
        return self.rule.explain(self.state)


class KeepsFront(Keeps):
    """Callback that keeps checkpoints by a `ParetoRule`."""

    @property
    def kept(self) -> dict[int, tuple[float, ...]]:
        """Step → values of the checkpoints on the front, oldest first."""
        return dict(self.state.kept)

    @property
    def pruned(self) -> dict[int, tuple[float, ...]]:
        """Step → values of the dominated checkpoints."""
        return dict(self.state.pruned)
