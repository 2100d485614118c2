"""The code on the page runs, except for the training itself; no models are loaded."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from ctrlreward.adapters.trl import as_reward_funcs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other_trainers.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_code_runs() -> None:
    names: dict[str, Any] = {}
    for block in blocks():
        ast.parse(block)
        if "GRPOTrainer(\n" not in block:  # it trains
            exec(block, names)
    assert names["weights"] == [1.0, 2.0, -0.001]
    assert inspect.iscoroutinefunction(names["compute_score"])
    assert list(inspect.signature(names["reward_func"]).parameters) == [
        "queries",
        "prompts",
        "labels",
    ]
    assert set(names["metrics"]) == {"coherence", "fail_rate", "distinct"}


def test_the_dataset_of_the_trl_example_has_the_mapped_columns() -> None:
    (training,) = (block for block in blocks() if "GRPOTrainer(\n" in block)
    (rows,) = re.findall(r"from_list\((.*)\)", training)
    (row,) = ast.literal_eval(rows)
    (columns,) = re.findall(r"^columns = (.*)$", "\n".join(blocks()), re.MULTILINE)
    assert set(ast.literal_eval(columns).values()) <= set(row)
    assert list(inspect.signature(as_reward_funcs).parameters) == ["reward", "columns", "name"]
