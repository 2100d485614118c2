"""The notebook docs/first_run.ipynb, whose cells run in order, with tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "first_run.ipynb"


def test_the_cells_train_look_and_select(
    workplace: dict[str, str],
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for long, short in (("STEPS, FOLDER = 15", "STEPS, FOLDER = 4"), ("interval=5", "interval=2")):
        (i,) = (i for i, source in enumerate(code) if long in source)
        code[i] = code[i].replace(long, short)
    assert all(cell.get("outputs", []) == [] for cell in cells)
    names: dict[str, Any] = {"__name__": "__main__"}
    for i, source in enumerate(code):
        exec(compile(source, f"{NOTEBOOK.name}, code cell {i}", "exec"), names)
    selected, steps = names["checkpoint"].selected_step, names["STEPS"]
    assert names["trainer"].global_step == steps
    assert names["tuner"].complete(["The soup"])
    printed = capsys.readouterr().out
    assert f"selected step {selected}" in printed
    # The replay without evidence chooses by the same means and constraint.
    assert names["rule"].best(names["state"]) == selected
    assert Path(names["FOLDER"], "report.html").is_file()
