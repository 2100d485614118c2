from __future__ import annotations

import runpy
from pathlib import Path

from ctrlreward.scorers import CTRLEval, Task

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = runpy.run_path(str(DOCS / "example_control_variables.py"))


def test_the_formal_text_scores_as_more_formal() -> None:
    task = Task.load(DOCS / "tasks" / "formality.yaml")
    scorer = CTRLEval(task=task, aspects=["attribute_relevance"])
    formal = scorer.probabilities(EXAMPLE["TEXTS"]["formality"])[:, task.labels.index("formal")]
    assert formal[0] > formal[1]


def test_all_tasks_load() -> None:
    tasks = {file.stem: Task.load(file) for file in (DOCS / "tasks").glob("*.yaml")}
    assert tasks.keys() == EXAMPLE["TEXTS"].keys()
