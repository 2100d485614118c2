"""The decider of all trainers: a rule, applied once to each set of weights.

The same weights validated again, by another evaluation set, after a resume, inside a callback, are
not a new validation; and a value counts as new only if it was logged since the last decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import dropwhile
from typing import Any, TypeVar

from ctrlreward.arguments import did_you_mean
from ctrlreward.selection.alarm import AlarmRule
from ctrlreward.selection.metrics import ModeOf, Snapshot, Validation

Rule = TypeVar("Rule")


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


def check_order(callback: Any, keys: Iterable[str], callbacks: Iterable[Any]) -> None:
    """Raise a ValueError if a callback reads keys of a guard that is after it in `callbacks`."""
    read = [*keys]
    for guard in dropwhile(lambda other: other is not callback, callbacks):
        for part in ("alarm", "p_value") if isinstance(guard.rule, AlarmRule) else ():
            if (key := f"{guard.name}/{part}") in read:
                raise ValueError(
                    f"{type(callback).__name__} reads {key!r} before it is logged: add the "
                    f"{type(guard).__name__} first"
                )


def given_alone(rule: Rule, *settings: object) -> Rule:
    """Return the rule that a callback was given; a TypeError if it got arguments of one as well."""
    if any(settings):
        raise TypeError(f"pass a {type(rule).__name__} or its arguments, not both")
    return rule


class Decider:
    """A rule of `ctrlreward.selection` with its state, which a checkpoint contains.

    Attributes:
        given: The rule, with directions as given.
        rule: The rule, with the directions that the scorers of the run declare once it has begun.
        state: Its state.
        before: The state before the validation that ended the run, None otherwise.
        step: Training step of the last decision, -1 before.
        measures: Key → what its last value was measured on; with another, a new reference begins.
    """

    def __init__(self, rule: Any) -> None:
        self.given = self.rule = rule
        self.state: Any = rule.start()
        self.before: Any = None
        self.step = -1
        self.measures: dict[str, str] = {}
        self._last: Validation | None = None  # that ended the run
        self._declared: Collection[str] | None = None

    def begin(self, mode_of: ModeOf, declared: Collection[str]) -> None:
        """Take the directions of a run. A state that no validation has changed starts anew.

        Of keys that its scorers have `declared`, a value may come later; others must be logged.
        """
        self.rule = self.given.directed(mode_of)
        check_declared(self.rule.keys, declared)
        self._declared = declared
        if self.step < 0:
            self.state = self.rule.start()

    def decide(self, now: Snapshot) -> Any:
        """Return the decision of the rule; the weights count as decided if it judged anything."""
        rule, state = self.rule, self.state
        fresh = {*now.fresh, *(key for key, step in now.trained.items() if step > self.step)}
        # Others that are not logged are an error of the rule. TRL logs no mean of failed samples.
        known = {*now.metrics, *(rule.keys if self._declared is None else self._declared)}
        failed = {k for k in rule.keys if now.metrics.get(f"{k.rpartition('/')[0]}/fail_rate") == 1}
        stale = {key for key in rule.keys if key not in fresh and key in known | failed}
        measured = {
            key: digest
            for key in rule.keys
            if key not in stale and (digest := getattr(now.evidence.get(key), "prompts", ""))
        }
        changed = [k for k, digest in measured.items() if self.measures.get(k, digest) != digest]
        self.measures |= measured
        if changed:  # a new reference; counts remain, so that the level holds for the whole run
            state = self.state = rule.renewed(state, changed)
        self.state, decision = rule.update(state, now.step, now.metrics, stale, now.evidence)
        if self.state is not state:
            self.step, self.before, self._last = now.step, None, None
            if self.state.ended:
                self.before = state
                self._last = Validation.of(now.step, now.metrics, now.evidence, rule.keys)
        return decision

    def resume(self) -> bool:
        """Return whether the run had ended, and ends again by the settings of this one.

        The last validation is judged again.
        """
        last = self._last
        if last is None or not self.state.ended:
            return False
        self.state, _ = self.rule.update(self.before, last.step, last.metrics, (), last.rows())
        return bool(self.state.ended)

    def to_dict(self) -> dict[str, Any]:
        """Return state and last step as plain data."""
        plain = {**self.state.to_dict(), "decided": self.step, "measures": dict(self.measures)}
        if self._last is not None:
            plain |= {"before": self.before.to_dict(), "last": self._last.to_dict()}
        return plain

    def load(self, plain: Mapping[str, Any]) -> None:
        """Restore `to_dict`; keys of others are ignored."""
        self.step = plain.get("decided", -1)
        self.measures = dict(plain.get("measures", {}))
        kind = type(self.rule.start())
        self.state, self.before, self._last = kind.from_dict(plain), None, None
        if "last" in plain:
            self.before = kind.from_dict(plain["before"])
            self._last = Validation.from_dict(plain["last"])


class Decides:
    """Callback of any trainer that decides by a rule, `rule`, which has a `state`."""

    decider: Decider

    @property
    def rule(self) -> Any:
        """The rule; once a run has begun, with the directions that its scorers declare."""
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
