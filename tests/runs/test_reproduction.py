"""Agreement of runs, `compare --reproduction`, against the study's tables and plain statistics."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.cli import main
from ctrlreward.functional.reproducibility import cv_star

TABLES = Path(__file__).resolve().parents[2] / "recipes/papers/reproduction/tables.csv"
# System: original, reproduction, CV* as the study prints it.
SENTIMENT = {"A": (97.1, 98.2, 1.12), "B": (94.3, 96.6, 2.40), "C": (90.7, 96.9, 6.59)}


def compared(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    output = tmp_path / "agreement.json"
    main(["compare", *map(str, arguments), "--reproduction", "--output", str(output)])
    return json.loads(output.read_text())


def test_the_studys_findings_are_upheld(tmp_path: Path) -> None:
    studies = compared(tmp_path, TABLES, "--by", "run", "--systems", "original", "reproduction")
    assert [each["study"]["findings"] for each in studies.values()] == [
        {"upheld": 13, "total": 13},
        {"upheld": 18, "total": 18},
    ]


@pytest.mark.parametrize("long", [True, False])
def test_a_row_per_value_and_a_row_per_system(tmp_path: Path, long: bool) -> None:
    for run in (0, 1):
        values = [(system, row[run]) for system, row in SENTIMENT.items()]
        lines = [f"{system},sentiment,{value}" for system, value in values]
        if not long:
            lines = [f"{system},{value}" for system, value in values]
        header = "system,metric,value" if long else "system,sentiment"
        (tmp_path / f"{run}.csv").write_text("\n".join([header, *lines, ""]))
    study = compared(tmp_path, tmp_path / "0.csv", tmp_path / "1.csv")[""]["study"]
    cells = {system: printed for system, (_, _, printed) in SENTIMENT.items()}
    assert study["metrics"]["sentiment"]["cv_star"] == pytest.approx(cells, abs=0.0051)
    assert study["mean_cv_star"] == pytest.approx(statistics.mean(cells.values()), abs=0.0051)
    assert study["findings"] == {"upheld": 2, "total": 3}


def test_logged_runs_by_last_values_and_curves(tmp_path: Path) -> None:
    first, second = HistoryLogger(str(tmp_path / "a")), HistoryLogger(str(tmp_path / "b"))
    curves = {10: (0.5, 0.6), 20: (0.7, 0.5), 30: (0.6, 0.7), 40: (0.8, 0.9)}
    for step, (a, b) in curves.items():
        first.log_metrics({"score/x": a, "loss": -a, "eval_runtime": step}, step)
        second.log_metrics({"score/x": b, "eval_runtime": 1.0}, step)
    second.log_metrics({"policy/kl": math.nan}, 50)
    found = compared(tmp_path, tmp_path / "a", tmp_path / "b")[""]
    assert found["values"].keys() == {"score/x", "loss", "policy/kl"}  # not the speed
    assert found["study"]["mean_cv_star"] == pytest.approx(cv_star([0.8, 0.9]))
    expected = statistics.correlation(*zip(*curves.values(), strict=True))
    assert found["curves"]["score/x"]["pearson"] == pytest.approx(expected)
    assert {gap["metric"] for gap in found["study"]["gaps"]} == {"loss", "policy/kl"}


@pytest.mark.parametrize("arguments", [[], ["--by", "ran"], ["--by", "run", "--metrics", "bleu"]])
def test_what_has_no_agreement_is_an_error(
    tmp_path: Path, arguments: list[str], fails: Callable[..., str]
) -> None:
    (tmp_path / "a.csv").write_text("run,system,x\n1,A,1\n2,A,2\n")
    assert "Traceback" not in fails("compare", tmp_path / "a.csv", "--reproduction", *arguments)
