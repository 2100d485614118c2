"""The page's code runs as far as it goes without a trainer: scorers load at their first score."""

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


def test_the_code_builds_what_it_says() -> None:
    names: dict[str, Any] = {}
    for block in blocks():
        ast.parse(block)
        if "GRPOTrainer(\n" not in block:  # which trains
            exec(block, names)
    assert names["weights"] == [1.0, 2.0, -0.001]
    assert inspect.iscoroutinefunction(names["compute_score"])
    assert list(inspect.signature(names["reward_func"]).parameters) == [
        "queries",
        "prompts",
        "labels",
    ]
    assert set(names["metrics"]) == {"coherence", "fail_rate", "distinct"}


def test_the_trl_example_names_columns_that_its_dataset_has() -> None:
    (training,) = (block for block in blocks() if "GRPOTrainer(\n" in block)
    (rows,) = re.findall(r"from_list\((.*)\)", training)
    (row,) = ast.literal_eval(rows)
    (columns,) = re.findall(r"^columns = (.*)$", "\n".join(blocks()), re.MULTILINE)
    assert set(ast.literal_eval(columns).values()) <= set(row)
    assert list(inspect.signature(as_reward_funcs).parameters) == ["reward", "columns", "name"]
