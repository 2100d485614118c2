"""The snapshot of an evaluation, against a search in the log key by key."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState

from ctrlreward.huggingface.run_state import Run

KEYS = ["loss", "own", "eval_loss", "eval_own", "eval_other"]
VALUES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([0.5, 1, None]))
ROWS = st.lists(st.tuples(st.integers(1, 4), VALUES), max_size=8)


def of_key(rows: list[dict[str, Any]], key: str) -> tuple[float, int]:
    """Return the last value of a key, and its step."""
    row = next(row for row in reversed(rows) if key in row)
    return math.nan if row[key] is None else float(row[key]), row["step"]


@given(ROWS, VALUES)
def test_values_and_their_age(log: list[Any], metrics: dict[str, Any]) -> None:
    state = TrainerState(global_step=4)
    state.log_history = [{**row, "step": step} for step, row in sorted(log, key=lambda row: row[0])]
    now = Run.of(state).take(state, metrics)
    assert Run.of(state).take(state, metrics) is now  # of all rules
    rows = [*state.log_history, {**metrics, "step": 4}]
    logged = {key for row in rows for key in row} - {"step"}
    found = {key: of_key(rows, key) for key in logged}
    # `own` is `eval_own` unless training logs it; `loss` is never `eval_loss`.
    found |= {
        name: found[f"eval_{name}"]
        for name in ("own", "other")
        if name not in found and f"eval_{name}" in found
    }
    values = {key: value for key, (value, _) in found.items()}
    assert json.dumps({**now.metrics}, sort_keys=True) == json.dumps(values, sort_keys=True)
    evaluated = {
        key for key in found if key.startswith("eval_") or key in metrics or key not in logged
    }
    assert set(now.fresh) == {key for key in evaluated if found[key][1] == 4}
    trained = {key: found[key][1] for key in found.keys() - evaluated}
    assert now.trained == trained
