"""What rules read from the log of a trainer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState

from ctrlreward.huggingface.run_state import read_validation

ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["loss", "eval_loss", "eval_score/a", "score/a", "step"]),
        st.sampled_from([0.5, 1, None]),
    ),
    max_size=8,
)


def fold_of_the_whole_log(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the last value of each key, key by key, from the end."""
    last: dict[str, float] = {}
    for key in {key for row in rows for key in row}:
        value = next(row[key] for row in reversed(rows) if key in row)
        last[key] = math.nan if value is None else float(value)
    for key, value in list(last.items()):
        last.setdefault(key.removeprefix("eval_"), value)
    return last


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


@given(st.lists(ROWS, max_size=6), ROWS)
def test_the_last_value_of_each_key_counts(logs: list[list[Any]], now: list[Any]) -> None:
    state, metrics = TrainerState(), dict(now[0]) if now else {}
    for rows in logs:
        state.log_history.extend(rows)
        expected = fold_of_the_whole_log([*state.log_history, metrics])
        assert same(read_validation(state, metrics)[0], expected)


def test_the_log_of_a_resumed_run_is_another_list(tmp_path: Path) -> None:
    state = TrainerState()
    state.log_history.append({"loss": 1.0})
    assert read_validation(state, {})[0] == {"loss": 1.0}
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    assert "last_logged" not in (tmp_path / "trainer_state.json").read_text()
    state.log_history = [{"loss": 3.0}, {"loss": 2.0}]
    assert read_validation(state, {})[0] == {"loss": 2.0}
