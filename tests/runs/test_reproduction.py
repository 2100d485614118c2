from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.cli import main
from ctrlreward.functional.agreement import cv_star

PAIRS = {"A": (97.1, 98.2, 1.12), "B": (94.3, 96.6, 2.40), "C": (90.7, 96.9, 6.59)}


@pytest.fixture
def two_tables(tmp_path: Path) -> list[str]:
    """Write published scores as long CSV, and those of a reproduction as JSON."""
    lines = [f"{system},sentiment,{first}" for system, (first, _, _) in PAIRS.items()]
    original = tmp_path / "original.csv"
    original.write_text("\n".join(["system,metric,value", *lines, ""]))
    again = {system: {"sentiment": second} for system, (_, second, _) in PAIRS.items()}
    reproduction = tmp_path / "reproduction.json"
    reproduction.write_text(json.dumps(again))
    return [str(original), str(reproduction)]


def compared(arguments: list[str], tmp_path: Path) -> dict[str, Any]:
    output = tmp_path / "output" / "comparison.json"
    main(["compare", *arguments, "--reproduction", "--output", str(output)])
    return json.loads(output.read_text())


def test_published_scores_of_three_systems(
    two_tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = compared(two_tables, tmp_path)
    assert result["runs"] == two_tables
    study = result["studies"][""]
    cells = {system: published for system, (_, _, published) in PAIRS.items()}
    assert study["metrics"]["sentiment"]["cv_star"] == pytest.approx(cells, abs=0.0051)
    assert study["mean_cv_star"] == pytest.approx(statistics.mean(cells.values()), abs=0.0051)
    assert study["findings"] == {"upheld": 2, "total": 3, "share": pytest.approx(2 / 3)}
    printed = capsys.readouterr().out
    assert [f"run {i}: {name}" for i, name in enumerate(two_tables, 1)] == printed.splitlines()[:2]
    assert "CV* (type I): 3.37 %, mean of 1 metric; for two runs, about their diff" in printed
    assert "findings (type IV): 2 of 3 pairs of systems in the same order (66.7 %)" in printed


def test_folders_of_two_logged_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = HistoryLogger(str(tmp_path / "a")), HistoryLogger(str(tmp_path / "b"))
    curves = {10: (0.5, 0.6), 20: (0.7, 0.5), 30: (0.6, 0.7), 40: (0.8, 0.9)}
    for step, (a, b) in curves.items():
        first.log_metrics({"score/x": a, "loss": -a, "eval_runtime": step}, step)
        second.log_metrics({"score/x": b, "eval_runtime": 1.0}, step)
    second.log_metrics({"policy/kl": math.nan}, 50)
    result = compared([str(tmp_path / "a"), str(tmp_path / "b")], tmp_path)
    study = result["studies"][""]
    assert study["mean_cv_star"] == pytest.approx(cv_star([0.8, 0.9]))  # not of the speed
    assert study["metrics"]["score/x"]["cv_star"]["run"] == pytest.approx(cv_star([0.8, 0.9]))
    sides = list(zip(*curves.values(), strict=True))
    expected = statistics.correlation(*sides)
    assert result["curves"]["score/x"]["pearson"] == pytest.approx(expected)
    assert result["curves"]["score/x"]["n"] == 4
    assert study["metrics"]["loss"]["mean_cv_star"] is None
    printed = capsys.readouterr().out
    assert "findings (type IV): none, because the runs share only one system" in printed
    assert printed.splitlines()[-3:] == [
        "left out:",
        "  loss: missing in run 2",
        "  policy/kl: missing in run 1, nan in run 2",
    ]


def test_studies_are_compared_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "study,system,x\n"
    (tmp_path / "a.csv").write_text(header + "one,A,1\none,B,2\ntwo,A,3\nthree,A,1\n")
    (tmp_path / "b.csv").write_text(header + "one,A,2\none,B,3\ntwo,A,3\n")
    result = compared([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], tmp_path)
    expected = statistics.mean([cv_star([1, 2]), cv_star([2, 3])])
    assert result["studies"]["one"]["mean_cv_star"] == pytest.approx(expected)
    assert result["studies"]["two"]["mean_cv_star"] == 0
    assert result["missing_studies"] == ["three"]
    assert capsys.readouterr().out.endswith("study 'three' is not in all runs: left out\n")


def test_two_seeds_of_a_study_of_twelve_systems(data_dir: Path, tmp_path: Path) -> None:
    """Topic control: 36 systems and settings, five classifiers."""
    file = data_dir / "lorandi_ctg" / "evaluation_flat.csv"
    settings = ["system", "prompting", "dataset", "max_len"]
    rows = "task=topic,measure=accuracy,class=overall"
    runs = [f"{file}:seed={seed},{rows}" for seed in (3443, 789)]
    result = compared([*runs, "--system-columns", *settings], tmp_path)
    values: dict[tuple[str, ...], dict[str, float]] = {}
    with open(file, newline="") as opened:
        for row in csv.DictReader(opened):
            if (row["task"], row["measure"], row["class"]) == ("topic", "accuracy", "overall"):
                key = (row["metric"], *(row[column] for column in settings))
                values.setdefault(key, {})[row["seed"]] = float(row["value"])
    metrics = result["studies"][""]["metrics"]
    cells = {
        (metric, system): cell
        for metric, agreement in metrics.items()
        for system, cell in agreement["cv_star"].items()
    }
    assert len(cells) == len(values) == 180
    for (metric, *system), published in values.items():
        expected = cv_star([published["3443"], published["789"]])
        assert cells[metric, " ".join(system)] == pytest.approx(expected)
    assert all(agreement["findings"]["total"] == 36 * 35 / 2 for agreement in metrics.values())
    systems = result["studies"][""]["systems"]
    assert len(systems) == 36
    for system, agreement in systems.items():
        cells = [
            (values[key]["3443"], values[key]["789"])
            for key in values
            if " ".join(key[1:]) == system
        ]
        expected = statistics.correlation(*zip(*cells, strict=True))
        assert agreement["correlation"]["pearson"] == pytest.approx(expected)
        assert agreement["correlation"]["n"] == 5


def test_names_are_printed_without_markup_and_no_findings_are_no_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('{"A": {"[/b]": 1, "y": null}, "B": {"[/b]": null, "y": 2}}')
    (tmp_path / "b.json").write_text('{"A": {"[/b]": 2, "y": 1}, "B": {"[/b]": 1, "y": 3}}')
    result = compared([str(tmp_path / "a.json"), str(tmp_path / "b.json")], tmp_path)
    findings = result["studies"][""]["findings"]
    assert findings == {"upheld": 0, "total": 0, "share": None}
    printed = capsys.readouterr().out
    assert "[/b]" in printed
    assert "nan" not in printed.split("left out")[0]
    assert "0 of 0" not in printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["absent", "b.json"], "absent"),
        (["a.json", "b.json", "--metrics", "z"], "z"),
        (["a.json", "b.json"], "metric"),
        (["a.json", "c.csv"], "study"),
        (["s.csv:system=A", "s.csv:system=B"], "system"),
        (["a.json"], "runs"),
        (["a.json", "a.json", "--output", "logged"], "logged"),
        (["a.json", "a.json", "--output=a.csv"], "--output"),
        (["logged", "logged"], "logged/metrics.csv:2"),
        (["twice.csv", "a.json"], "twice.csv:1"),
    ],
)
def test_errors_name_the_fix(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[..., str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text('{"x": 1}')
    Path("b.json").write_text('{"y": 1}')
    Path("c.csv").write_text("study,x\none,1\n")
    Path("twice.csv").write_text("x,x\n1,2\n")
    Path("s.csv").write_text("system,x\nA,1\nB,2\n")
    Path("logged").mkdir()
    Path("logged", "metrics.csv").write_text("x\n1\n")
    assert named in fails("compare", *arguments, "--reproduction")
