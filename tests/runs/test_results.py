from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import wandb
from pytorch_lightning.loggers import CSVLogger
from wandb_runs import wait_for_files

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.runs.logs import read_wandb_history
from ctrlreward.runs.reproduction import read_run

NAN = pytest.approx(math.nan, nan_ok=True)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# Tables


@pytest.mark.parametrize(
    ("file", "text", "studies"),
    [
        ("a.csv", "system,metric,value\nA,x,1\nB,x,2.5\nA,y,\n",
         {"": {"x": {"A": 1.0, "B": 2.5}, "y": {"A": NAN}}}),
        ("a.csv", "study,system,metric,value\nfirst,A,x,1\nsecond,A,x,2\n",
         {"first": {"x": {"A": 1.0}}, "second": {"x": {"A": 2.0}}}),
        ("a.csv", "system,x,y\nA,1,2\nB,3,nan\n",  # wide
         {"": {"x": {"A": 1.0, "B": 3.0}, "y": {"A": 2.0, "B": NAN}}}),
        ("a.csv", "\ufeffx,y\n1,2\n",  # of one system, as spreadsheets write it
         {"": {"x": {"run": 1.0}, "y": {"run": 2.0}}}),
        ("a.json", '{"A": {"x": 1, "y": null}, "B": {"x": 2.5}}',
         {"": {"x": {"A": 1.0, "B": 2.5}, "y": {"A": NAN}}}),
        ("a.json", '{"x": 1, "y": 2}', {"": {"x": {"run": 1.0}, "y": {"run": 2.0}}}),
    ],
)  # fmt: skip
def test_a_table(tmp_path: Path, file: str, text: str, studies: dict[str, Any]) -> None:
    run = read_run(write(tmp_path / file, text))
    assert run.studies == studies
    assert run.curves == {}


def test_columns_that_name_system_and_metric_together(tmp_path: Path) -> None:
    text = "model,size,metric,measure,value\nA,1,x,f1,3\nA,2,x,f1,4\nA,1,x,recall,5\n"
    file = write(tmp_path / "a.csv", text)
    studies = read_run(file, ["model", "size"], ["metric", "measure"]).studies
    assert studies == {"": {"x f1": {"A 1": 3.0, "A 2": 4.0}, "x recall": {"A 1": 5.0}}}
    long = write(tmp_path / "b.csv", f"system,note,x\nA,{'n' * 200_000},1\n")
    assert read_run(long, ["system", "note"]).studies[""]["x"].popitem()[1] == 1.0


def test_a_selection_of_rows(tmp_path: Path) -> None:
    text = "seed,kind,system,metric,value\n1,all,A,x,3\n2,all,A,x,4\n2,some,A,x,5\n"
    file = write(tmp_path / "a.csv", text)
    assert read_run(f"{file}:seed=2,kind=all").studies == {"": {"x": {"A": 4.0}}}
    assert read_run(f"{file}:seed=1").studies == {"": {"x": {"A": 3.0}}}


# Loggers


def test_folder_of_our_logger_with_the_report(tmp_path: Path) -> None:
    logger = HistoryLogger(str(tmp_path))
    logger.log_metrics({"score/x": 0.5, "epoch": 0}, 10)
    logger.log_metrics({"loss": 2.0}, 15)
    logger.log_metrics({"score/x": 0.75, "loss": math.nan}, 20)
    run = read_run(str(tmp_path))
    assert run.curves == {"score/x": {10: 0.5, 20: 0.75}, "loss": {15: 2.0, 20: NAN}}
    assert run.studies == {"": {"score/x": {"run": 0.75}, "loss": {"run": NAN}}}
    report = {
        "score": "x",
        "after": {"x": 0.8, "fail_rate": 0.0, "generations": 16},
        "difference": None,
        "judges": {"lexicon": {"before": 0.5, "after": 0.9, "difference_ci95": [0.3, 0.5]}},
    }
    write(tmp_path / "summary.json", json.dumps(report))
    added = read_run(str(tmp_path)).studies[""]
    assert {name: added[name]["run"] for name in added.keys() - {"score/x", "loss"}} == {
        "after/x": 0.8,
        "after/fail_rate": 0.0,
        "difference": NAN,
        "judges/lexicon": 0.9,
    }


@pytest.mark.parametrize("inside", ["", "metrics.csv"])
def test_csv_of_lightning(tmp_path: Path, inside: str) -> None:
    logger = CSVLogger(tmp_path, name="", version="v")
    logger.log_metrics({"score/x": 0.5, "epoch": 0}, 10)
    logger.log_metrics({"loss": 2.0}, 15)
    logger.log_metrics({"score/x": 0.75}, 20)
    logger.save()
    run = read_run(str(tmp_path / "v" / inside))
    assert run.curves == {"score/x": {10: 0.5, 20: 0.75}, "loss": {15: 2.0}}
    assert run.studies == {"": {"score/x": {"run": 0.75}, "loss": {"run": 2.0}}}


STEPS = 100
LONG = "/".join(["name"] * 150)


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a real offline run, with a file of several blocks."""
    folder = tmp_path_factory.mktemp("wandb")
    with wandb.init(project="p", dir=str(folder), mode="offline") as run:
        for step in range(STEPS):
            row = {"trainer/global_step": 10 * step, "score/x": step / 8, LONG: 1}
            run.log(row if step else row | {"table": wandb.Table(["a"], [[1]]), "bad": math.nan})
    wait_for_files(folder)
    (run_folder,) = (folder / "wandb").glob("offline-run-*")
    return run_folder


def test_offline_folder_of_wandb(offline: Path) -> None:
    (file,) = offline.glob("*.wandb")
    assert file.stat().st_size > 2 * 32768
    run = read_run(str(offline))
    assert run.curves["score/x"] == {10 * step: step / 8 for step in range(STEPS)}
    assert run.studies[""]["score/x"] == {"run": (STEPS - 1) / 8}
    assert run.studies[""]["bad"] == {"run": NAN}
    assert set(run.curves) == {"score/x", "bad", LONG}


def test_an_incomplete_file_of_wandb(offline: Path, tmp_path: Path) -> None:
    (file,) = offline.glob("*.wandb")
    content = file.read_bytes()
    for size, fewest in ((len(content) // 2, STEPS // 3), (32768 + 3, 1), (7, 0)):
        cut = tmp_path / "cut.wandb"
        cut.write_bytes(content[:size])
        steps = [row["_step"] for row in read_wandb_history(cut)]
        assert fewest <= len(steps) < STEPS
        assert steps == list(range(len(steps)))


def test_summary_of_wandb_without_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    summary = {"_step": 3, "_timestamp": 1.0, "epoch": 2, "x": 0.5, "bad": "NaN", "t": {"a": 1}}
    summary |= {"score/y": {"max": 0.75, "last": 0.25}, "score/scored_step": 10}
    write(tmp_path / "files" / "wandb-summary.json", json.dumps(summary))
    run = read_run(str(tmp_path))
    assert run.studies == {"": {"x": {"run": 0.5}, "bad": {"run": NAN}, "score/y": {"run": 0.25}}}
    assert run.curves == {}


# Errors


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.csv", "system,metric,value\nA,x,high\n", ":2: value"),
        ("a.csv", "system,x\nA,1\nA,2\n", ":3 repeats"),
        ("a.csv", "system,metric,value\nA,x\n", ":2 has 2 cells"),
        ("a.csv", "system,value\nA,1\n", "metric"),
        ("a.csv", "step,x\n1,\n", "a.csv"),
        ("a.csv", "step,x\n1,2\n,3\n", ":3 has no step"),
        ("a.csv:system=B", "system,x\nA,1\n", "system = B"),
        ("a.json", '{"x": "high"}', "x = 'high'"),
        ("a.txt", "", "txt"),
        ("", "", "log of a run"),
    ],
)
def test_what_can_not_be_read_is_named(tmp_path: Path, name: str, text: str, place: str) -> None:
    if name:
        write(tmp_path / name.partition(":")[0], text)
    with pytest.raises(ValueError, match=place):
        read_run(str(tmp_path / name))
