"""All rules of a run, folded over its validations: in a trainer's hook, or after the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ctrlreward.selection.alarm import AlarmDecision, AlarmRule
from ctrlreward.selection.best import BestRule, ConstraintCheck, KeepDecision
from ctrlreward.selection.decider import Decider
from ctrlreward.selection.metrics import Evidence, Snapshot
from ctrlreward.selection.pareto import ParetoRule
from ctrlreward.selection.stopping import StopDecision, StopRule

ALARM_KEY = "guard/alarm"  # as `ProxyGuard` logs it

# A file next to the log: `rules`, name of a class → its settings; `directions`, key → the better
# one; `folders` of checkpoints, relative to the log → the key that is monitored there.
DECISIONS = "decisions.json"


class Decided(NamedTuple):
    """Decisions of the rules of a run at a validation; None for rules that the run does not have.

    Attributes:
        constraints: Key → whether and why the validation does not meet its bounds.
        keep: Decision of the `BestRule`.
        best: Selected step after this validation, or None.
        explanation: The reason, in words.
        front: Steps on the Pareto front after this validation.
        stop: Decision of the `StopRule`; after a stop, as if the run continued.
        stopped: Whether the rule has stopped at this validation or before.
    """

    validation: Snapshot
    constraints: Mapping[str, ConstraintCheck]
    keep: KeepDecision | None
    best: int | None
    explanation: str
    front: tuple[int, ...]
    stop: StopDecision | None
    stopped: bool
    alarm: AlarmDecision | None


@dataclass(frozen=True)
class RunRules:
    """The rules of a run; each may be None, but not all.

    An alarm comes first and is the metric `guard/alarm`, 1.0 or 0.0, so that a constraint of `best`
    may exclude validations with an alarm.

    Raises:
        ValueError: No rule is given.

    Examples:
        >>> from ctrlreward.selection import BestRule, StopRule
        >>> rules = RunRules(best=BestRule("acc"), stop=StopRule("acc", patience=1))
        >>> seen = rules.validations([(10, {"acc": 0.5}, {}), (20, {"acc": 0.4}, {})])
        >>> [(each.best, each.stopped) for each in rules.replay(seen)]
        [(10, False), (10, True)]
    """

    best: BestRule | None = None
    stop: StopRule | None = None
    alarm: AlarmRule | None = None
    pareto: ParetoRule | None = None

    def __post_init__(self) -> None:
        if not (self.best or self.stop or self.alarm or self.pareto):
            raise ValueError("best, stop, alarm or pareto must be a rule")

    @property
    def monitored(self) -> list[str]:
        """Keys that define a validation: scores to select and stop by, held-out metrics."""
        keys = [rule.monitor for rule in (self.best, self.stop) if rule]
        keys += self.pareto.metrics if self.pareto else []
        keys += self.alarm.modes if self.alarm else []
        return list(dict.fromkeys(keys))

    @property
    def others(self) -> list[str]:
        """Further keys that must be in the log: of constraints and the proxy."""
        known = [*self.monitored, *([ALARM_KEY] if self.alarm else [])]
        keys = [key for rule in (self.best, self.alarm) if rule for key in rule.keys]
        return [key for key in dict.fromkeys(keys) if key not in known]

    def validations(
        self, steps: Iterable[tuple[int, Mapping[str, float], Evidence]]
    ) -> Iterator[Snapshot]:
        """Yield the validations of a log: the steps at which a monitored key was logged.

        Other metrics have their last value, which may be stale. `steps` are step, metrics logged at
        this step, and evidence, in order.
        """
        last: dict[str, float] = {}
        fresh: set[str] = set()
        for step, metrics, evidence in steps:
            last |= metrics
            fresh |= set(metrics)
            if any(key in metrics for key in self.monitored):
                yield Snapshot(step, dict(last), fresh, evidence)
                fresh = set()

    def replay(self, validations: Iterable[Snapshot]) -> Iterator[Decided]:
        """Yield the decisions of the rules at each validation."""
        every = {"alarm": self.alarm, "best": self.best, "stop": self.stop, "pareto": self.pareto}
        deciders = {name: Decider(rule) for name, rule in every.items() if rule}
        keeper, front = deciders.get("best") or deciders.get("pareto"), deciders.get("pareto")
        bounds = self.best.constraints if self.best else {}
        stopped = False
        for snapshot in validations:
            decisions: dict[str, Any] = dict.fromkeys(every)
            for name, decider in deciders.items():
                decisions[name] = decider.decide(snapshot)
                if name == "alarm":
                    snapshot = snapshot.having(**{ALARM_KEY: float(decisions[name].alarm)})
            stopped = stopped or (self.stop is not None and decisions["stop"].stop)
            waiting = [key for key in bounds if key not in snapshot.fresh]
            yield Decided(
                snapshot,
                self.best.check_constraints(snapshot.metrics, waiting) if self.best else {},
                decisions["best"],
                keeper.rule.best(keeper.state) if keeper else None,
                keeper.rule.explain(keeper.state) if keeper else "",
                tuple(front.state.kept) if front else (),
                decisions["stop"],
                stopped,
                decisions["alarm"],
            )
