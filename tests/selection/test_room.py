"""Rules have one shape, states are plain data, and nothing here needs a trainer."""

from __future__ import annotations

import ast
import io
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

from ctrlreward import selection
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule

RULES = {
    "stop": StopRule("x", patience=2),
    "best": BestRule("x", top_k=2, constraints={"y": (None, 1.0)}),
    "front": ParetoRule({"x": "max", "y": "min"}),
    "alarm": AlarmRule("x", "y"),
}


@pytest.mark.parametrize("name", RULES)
def test_all_rules_have_one_shape_and_states_for_any_checkpoint(name: str) -> None:
    rule = RULES[name]
    state = rule.start()
    for step in range(1, 6):
        old, before = state, repr(state)
        state, decision = rule.update(state, step, {"x": 0.1 * step, "y": 1.0 / step})
        assert repr(old) == before  # an update changes no earlier state
        assert isinstance(decision.reason, str)
        assert decision.reason
    skipped, decision = rule.update(state, 6, {"x": 9.0, "y": 0.0}, stale=("x", "y"))
    assert skipped == state
    assert decision.reason.startswith("no new value of x")
    with pytest.raises(FrozenInstanceError):
        state.anything = 1
    file = io.BytesIO()
    torch.save(state.to_dict(), file)
    file.seek(0)
    assert type(state).from_dict(torch.load(file, weights_only=True)) == state


def test_rules_import_neither_a_trainer_nor_torch() -> None:
    imported: set[str] = set()
    for path in Path(selection.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    ours = {name for name in imported if name.startswith("ctrlreward.selection")}
    assert imported - ours - set(sys.stdlib_module_names) == {
        "collections.abc",
        "ctrlreward.arguments",
        "ctrlreward.functional.agreement",
        "ctrlreward.functional.diversity",
        "ctrlreward.functional.pareto",
        "ctrlreward.functional.sequential",
        "ctrlreward.functional.trend",
        "ctrlreward.text.words",
        "numpy",
        "numpy.typing",
        "pydantic",
    }
