"""Decisions on logged metrics, independent of any trainer.

Each rule is a fold over validations: immutable state in, new state and a decision out.

    >>> rule = StopRule("score/sim", patience=2)
    >>> state = rule.start()
    >>> for step, value in [(100, 0.5), (200, 0.4), (300, 0.3)]:
    ...     state, decision = rule.update(state, step, {"score/sim": value})
    >>> decision.stop
    True
    >>> decision.reason
    'score/sim has not improved by more than 0.0 in the last 2 scores (now 0.3000, best 0.5000)'

All four rules (`StopRule`, `BestRule`, `ParetoRule`, `AlarmRule`) have this shape:

- `rule.start()` returns the state before the first validation. `rule.keys` are the keys that it
  reads; `rule.directed` returns the rule with the directions that the scorers of a run declare.
- `rule.update(state, step, metrics, stale=(), evidence=None)` returns `(state, decision)`.
  `metrics` maps logged keys to floats. `stale` lists keys without a new value, on which no decision
  is made. `evidence` maps keys to one value per held-out prompt, by which two validations are
  compared (docs/stopping_and_selection.md); without it, rules decide on means, as `ParetoRule`
  always does.
- `decision.reason` explains the decision in words.
- `state.to_dict()` returns plain data for a checkpoint or a JSON file. `<State>.from_dict` restores
  it, and the fold continues as if it had not been interrupted.

`BestRule` and `ParetoRule` also have `best(state)`, the step of the best checkpoint. `RunRules`
folds all rules of a run at once.
"""

from ctrlreward.selection.alarm import AlarmDecision, AlarmRule, AlarmState
from ctrlreward.selection.best import BestRule, BestState, KeepDecision
from ctrlreward.selection.metrics import Snapshot
from ctrlreward.selection.pareto import ParetoRule, ParetoState
from ctrlreward.selection.replay import Decided, RunRules
from ctrlreward.selection.stopping import StopDecision, StopRule, StopState

__all__ = [
    "AlarmDecision",
    "AlarmRule",
    "AlarmState",
    "BestRule",
    "BestState",
    "Decided",
    "KeepDecision",
    "ParetoRule",
    "ParetoState",
    "RunRules",
    "Snapshot",
    "StopDecision",
    "StopRule",
    "StopState",
]
