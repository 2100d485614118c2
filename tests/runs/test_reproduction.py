"""Results of runs as `compare --reproduction` reads them, and their agreement."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb_runs import wait_for_files

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.cli import main
from ctrlreward.functional.reproducibility import cv_star
from ctrlreward.runs.logs import read_wandb_history
from ctrlreward.runs.reproduction import read_run

NAN = pytest.approx(math.nan, nan_ok=True)
LONG = "model,size,metric,measure,value\nA,1,x,f1,3\nA,2,x,f1,4\nA,1,x,recall,5\n"
SEEDS = "seed,kind,system,metric,value\n1,all,A,x,3\n2,all,A,x,4\n2,some,A,x,5\n"


@pytest.mark.parametrize(
    ("name", "text", "studies"),
    [
        ("a.csv", "system,metric,value\nA,x,1\nB,x,2.5\nA,y,\n",
         {"": {"x": {"A": 1.0, "B": 2.5}, "y": {"A": NAN}}}),
        ("a.csv", "study,system,metric,value\nfirst,A,x,1\nsecond,A,x,2\n",
         {"first": {"x": {"A": 1.0}}, "second": {"x": {"A": 2.0}}}),
        ("a.csv", "system,x,y\nA,1,2\nB,3,nan\n",  # wide
         {"": {"x": {"A": 1.0, "B": 3.0}, "y": {"A": 2.0, "B": NAN}}}),
        ("a.csv", "\ufeffx,y\n1,2\n",  # of one system, as spreadsheets write it
         {"": {"x": {"run": 1.0}, "y": {"run": 2.0}}}),
        ("a.csv:seed=2,kind=all", SEEDS, {"": {"x": {"A": 4.0}}}),
        ("a.csv:seed=1", SEEDS, {"": {"x": {"A": 3.0}}}),
        ("a.json", '{"A": {"x": 1, "y": null}, "B": {"x": 2.5}}',
         {"": {"x": {"A": 1.0, "B": 2.5}, "y": {"A": NAN}}}),
        ("a.json", '{"x": 1, "y": 2}', {"": {"x": {"run": 1.0}, "y": {"run": 2.0}}}),
    ],
)  # fmt: skip
def test_a_table(tmp_path: Path, name: str, text: str, studies: dict[str, Any]) -> None:
    (tmp_path / name.partition(":")[0]).write_text(text, encoding="utf-8")
    run = read_run(str(tmp_path / name))
    assert run.studies == studies
    assert run.curves == {}


def test_columns_that_name_system_and_metric_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(LONG)
    studies = read_run(str(tmp_path / "a.csv"), ["model", "size"], ["metric", "measure"]).studies
    assert studies == {"": {"x f1": {"A 1": 3.0, "A 2": 4.0}, "x recall": {"A 1": 5.0}}}


def test_a_logged_run_with_the_report(tmp_path: Path) -> None:
    logger = HistoryLogger(str(tmp_path))
    logger.log_metrics({"score/x": 0.5, "epoch": 0}, 10)
    logger.log_metrics({"loss": 2.0}, 15)
    logger.log_metrics({"score/x": 0.75, "loss": math.nan}, 20)
    report = {
        "score": "x",
        "after": {"x": 0.8, "fail_rate": 0.0, "generations": 16},
        "difference": None,
        "judges": {"lexicon": {"before": 0.5, "after": 0.9, "difference_ci95": [0.3, 0.5]}},
    }
    (tmp_path / "summary.json").write_text(json.dumps(report))
    run = read_run(str(tmp_path))
    assert run.curves == {"score/x": {10: 0.5, 20: 0.75}, "loss": {15: 2.0, 20: NAN}}
    last = {"score/x": 0.75, "loss": NAN, "after/x": 0.8, "after/fail_rate": 0.0}
    last |= {"difference": NAN, "judges/lexicon": 0.9}
    assert run.studies == {"": {name: {"run": value} for name, value in last.items()}}


STEPS = 100
WIDE = "/".join(["name"] * 150)


def test_offline_files_of_wandb(tmp_path: Path) -> None:
    """Of several blocks, whole and cut off anywhere."""
    with wandb.init(project="p", dir=str(tmp_path), mode="offline") as logged:
        for step in range(STEPS):
            row = {"trainer/global_step": 10 * step, "score/x": step / 8, WIDE: 1}
            logged.log(row if step else row | {"table": wandb.Table(["a"], [[1]]), "bad": math.nan})
    wait_for_files(tmp_path)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    content = file.read_bytes()
    assert len(content) > 2 * 32768
    run = read_run(str(folder))
    assert run.curves["score/x"] == {10 * step: step / 8 for step in range(STEPS)}
    assert run.studies[""]["bad"] == {"run": NAN}
    assert set(run.curves) == {"score/x", "bad", WIDE}
    for size, fewest in ((len(content) // 2, STEPS // 3), (32768 + 3, 1), (7, 0)):
        cut = tmp_path / "cut.wandb"
        cut.write_bytes(content[:size])
        steps = [row["_step"] for row in read_wandb_history(cut)]
        assert fewest <= len(steps) < STEPS
        assert steps == list(range(len(steps)))


# Agreement

PAIRS = {"A": (97.1, 98.2, 1.12), "B": (94.3, 96.6, 2.40), "C": (90.7, 96.9, 6.59)}


def compared(arguments: list[str], tmp_path: Path) -> dict[str, Any]:
    output = tmp_path / "output" / "comparison.json"
    main(["compare", *arguments, "--reproduction", "--output", str(output)])
    return json.loads(output.read_text())


def test_published_scores_of_three_systems(tmp_path: Path) -> None:
    lines = [f"{system},sentiment,{first}" for system, (first, _, _) in PAIRS.items()]
    (tmp_path / "a.csv").write_text("\n".join(["system,metric,value", *lines, ""]))
    again = {system: {"sentiment": second} for system, (_, second, _) in PAIRS.items()}
    (tmp_path / "b.json").write_text(json.dumps(again))
    study = compared([f"{tmp_path}/a.csv", f"{tmp_path}/b.json"], tmp_path)["studies"][""]
    cells = {system: published for system, (_, _, published) in PAIRS.items()}
    assert study["metrics"]["sentiment"]["cv_star"] == pytest.approx(cells, abs=0.0051)
    assert study["mean_cv_star"] == pytest.approx(statistics.mean(cells.values()), abs=0.0051)
    assert study["findings"] == {"upheld": 2, "total": 3, "share": pytest.approx(2 / 3)}


def test_two_logged_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = HistoryLogger(str(tmp_path / "a")), HistoryLogger(str(tmp_path / "b"))
    curves = {10: (0.5, 0.6), 20: (0.7, 0.5), 30: (0.6, 0.7), 40: (0.8, 0.9)}
    for step, (a, b) in curves.items():
        first.log_metrics({"score/x": a, "loss": -a, "eval_runtime": step}, step)
        second.log_metrics({"score/x": b, "eval_runtime": 1.0}, step)
    second.log_metrics({"policy/kl": math.nan}, 50)
    result = compared([f"{tmp_path}/a", f"{tmp_path}/b"], tmp_path)
    study = result["studies"][""]
    assert study["mean_cv_star"] == pytest.approx(cv_star([0.8, 0.9]))  # not of the speed
    assert study["metrics"]["score/x"]["cv_star"]["run"] == pytest.approx(cv_star([0.8, 0.9]))
    expected = statistics.correlation(*zip(*curves.values(), strict=True))
    assert result["curves"]["score/x"]["pearson"] == pytest.approx(expected)
    assert result["curves"]["score/x"]["n"] == 4
    assert study["metrics"]["loss"]["mean_cv_star"] is None
    assert {(gap["metric"], gap["reason"]) for gap in study["gaps"]} == {
        ("loss", "missing in run 2"), ("policy/kl", "missing in run 1, nan in run 2")
    }  # fmt: skip
    printed = capsys.readouterr().out
    assert "policy/kl: missing in run 1" in printed


def test_studies_are_compared_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("study,system,x\none,A,1\none,B,2\ntwo,A,3\nthree,A,1\n")
    (tmp_path / "b.csv").write_text("study,system,x\none,A,2\none,B,3\ntwo,A,3\n")
    result = compared([f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"], tmp_path)
    expected = statistics.mean([cv_star([1, 2]), cv_star([2, 3])])
    assert result["studies"]["one"]["mean_cv_star"] == pytest.approx(expected)
    assert result["studies"]["two"]["mean_cv_star"] == 0
    assert result["missing_studies"] == ["three"]


def test_two_seeds_of_a_study_of_twelve_systems(data_dir: Path, tmp_path: Path) -> None:
    """Topic control: 36 systems and settings, five classifiers."""
    file = data_dir / "lorandi_ctg" / "evaluation_flat.csv"
    settings = ["system", "prompting", "dataset", "max_len"]
    rows = "task=topic,measure=accuracy,class=overall"
    runs = [f"{file}:seed={seed},{rows}" for seed in (3443, 789)]
    study = compared([*runs, "--system-columns", *settings], tmp_path)["studies"][""]
    values: dict[tuple[str, str], dict[str, float]] = {}
    with open(file, newline="") as opened:
        for row in csv.DictReader(opened):
            if (row["task"], row["measure"], row["class"]) == ("topic", "accuracy", "overall"):
                system = " ".join(row[column] for column in settings)
                values.setdefault((row["metric"], system), {})[row["seed"]] = float(row["value"])
    cells = {
        (metric, system): cell
        for metric, agreement in study["metrics"].items()
        for system, cell in agreement["cv_star"].items()
    }
    assert len(cells) == 180
    expected = {key: cv_star([seeds["3443"], seeds["789"]]) for key, seeds in values.items()}
    assert cells == pytest.approx(expected)
    assert all(each["findings"]["total"] == 36 * 35 / 2 for each in study["metrics"].values())
    for system, agreement in study["systems"].items():
        sides = [(v["3443"], v["789"]) for key, v in values.items() if key[1] == system]
        pearson = statistics.correlation(*zip(*sides, strict=True))
        assert agreement["pearson"] == pytest.approx(pearson)


def test_names_are_printed_without_markup_and_no_findings_are_no_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('{"A": {"[/b]": 1, "y": null}, "B": {"[/b]": null, "y": 2}}')
    (tmp_path / "b.json").write_text('{"A": {"[/b]": 2, "y": 1}, "B": {"[/b]": 1, "y": 3}}')
    result = compared([f"{tmp_path}/a.json", f"{tmp_path}/b.json"], tmp_path)
    assert result["studies"][""]["findings"] == {"upheld": 0, "total": 0, "share": None}
    printed = capsys.readouterr().out
    assert "[/b]" in printed
    assert "nan" not in printed.split("left out")[0]
    assert "0 of 0" not in printed


FILES = {
    "a.json": '{"x": 1}',
    "b.json": '{"y": 1}',
    "text.json": '{"x": "high"}',
    "c.csv": "study,x\none,1\n",
    "s.csv": "system,x\nA,1\nB,2\n",
    "text.csv": "system,metric,value\nA,x,high\n",
    "again.csv": "system,x\nA,1\nA,2\n",
    "short.csv": "system,metric,value\nA,x\n",
    "long.csv": "system,value\nA,1\n",
    "empty.csv": "step,x\n1,\n",
    "steps.csv": "step,x\n1,2\n,3\n",
    "a.txt": "",
    "logged/metrics.csv": "x\n1\n",
    "nothing/a.md": "",
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("absent b.json", "absent"),
        ("a.json b.json", "metric"),
        ("a.json b.json --metrics z", "z"),
        ("a.json c.csv", "study"),
        ("s.csv:system=A s.csv:system=B", "system"),
        ("a.json", "runs"),
        ("a.json a.json --output logged", "logged"),
        ("logged logged", "logged/metrics.csv:2"),
        ("nothing a.json", "nothing has no log of a run"),
        ("text.json a.json", "x = 'high'"),
        ("text.csv a.json", "text.csv:2: value"),
        ("again.csv a.json", "again.csv:3 repeats"),
        ("short.csv a.json", "short.csv:2 has 2 cells"),
        ("long.csv a.json", "metric"),
        ("empty.csv a.json", "empty.csv"),
        ("steps.csv a.json", "steps.csv:3 has no step"),
        ("s.csv:system=C a.json", "system = C"),
        ("a.txt a.json", "txt"),
    ],
)
def test_mistakes(
    arguments: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[..., str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    assert named in fails("compare", *arguments.split(), "--reproduction")
