from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.cli import main
from ctrlreward.functional.transfer import adjusted_gm

# Step → Acc, Sim, PP, GM. The first run passes Acc 0.8 between steps 10 and 15.
FIRST = {
    5: (0.90, 0.60, 30.0, 5.0),
    10: (0.83, 0.72, 40.0, 11.0),
    15: (0.78, 0.75, 50.0, 14.0),
    20: (0.60, 0.80, 90.0, 0.0),
}
SECOND = {3: (0.75, 0.70, 60.0, 0.0), 6: (0.85, 0.75, 45.0, 17.0), 9: (0.8, 0.74, 44.0, 16.0)}


def write_run(folder: Path, rows: dict[int, tuple[float, ...]], prefix: str = "corpus/") -> str:
    logger = HistoryLogger(str(folder))
    for step, values in rows.items():
        logger.log_metrics({"reward/total": 0.1}, step - 1)
        names = ("accuracy", "similarity", "perplexity", "gm")
        row = {f"score/{prefix}{name}": v for name, v in zip(names, values, strict=False)}
        # The means of sentences, which are others.
        logger.log_metrics({"score/gm": 99.0, "score/accuracy": 0.5, **row}, step)
    return str(folder)


def shown(arguments: list[str], tmp_path: Path) -> dict[str, Any]:
    output = tmp_path / "out" / "rows.json"
    main(["trajectories", *arguments, "--output", str(output)])
    return json.loads(output.read_text())


def test_rows_of_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / "a", FIRST), write_run(tmp_path / "b", SECOND)]
    result = shown([*runs, "--plot", str(tmp_path / "t.png")], tmp_path)
    width, height = struct.unpack(">II", (tmp_path / "t.png").read_bytes()[16:24])
    assert (width, height) == (round(2 * 4.8 * 130), round(3.8 * 130))
    assert result["accuracy"] == 0.8
    first, second = result["runs"]
    assert [row["step"] for row in first["validations"]] == [5, 10, 15, 20]
    keys = ("accuracy", "similarity", "perplexity", "gm")
    assert [tuple(row[k] for k in keys) for row in first["validations"]] == list(FIRST.values())
    assert first["metrics"] == {key: f"score/corpus/{key}" for key in keys}
    assert first["thresholds"] is None
    assert (first["nearest"]["step"], first["best"]["step"]) == (15, 15)
    assert (second["nearest"]["step"], second["best"]["step"]) == (9, 6)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"run 1: {runs[0]}, 4 validations of score/corpus/accuracy, score")
    rows = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    assert rows == [
        ["1", "Acc nearest to 0.8", "15", "0.780", "0.750", "50.0", "14.0"],
        ["1", "best GM", "15", "0.780", "0.750", "50.0", "14.0"],
        ["2", "Acc nearest to 0.8", "9", "0.800", "0.740", "44.0", "16.0"],
        ["2", "best GM", "6", "0.850", "0.750", "45.0", "17.0"],
    ]


def test_equally_near_validations_are_ranked_by_gm(tmp_path: Path) -> None:
    """0.75 and 0.85 are as far from 0.8, whatever floats say."""
    run = write_run(tmp_path / "a", {step: SECOND[step] for step in (3, 6)})
    (found,) = shown([run, "--accuracy", "0.8"], tmp_path)["runs"]
    assert found["nearest"]["step"] == 6
    (found,) = shown([run, "--accuracy", "0.7"], tmp_path)["runs"]
    assert found["nearest"]["step"] == 3


def test_a_gm_is_computed_with_thresholds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a", FIRST)
    (found,) = shown([run, "--thresholds", "50", "40", "97", "-37"], tmp_path)["runs"]
    accuracy, similarity, perplexity, _ = zip(*FIRST.values(), strict=True)
    expected = adjusted_gm(accuracy, similarity, perplexity, thresholds=(50, 40, 97, -37))
    assert [row["gm"] for row in found["validations"]] == pytest.approx(expected.tolist())
    assert found["thresholds"] == [50, 40, 97, -37]
    assert "gm" not in found["metrics"]
    assert "GM computed with the thresholds 50 40 97 -37" in capsys.readouterr().out


def test_without_a_logged_gm_the_papers_thresholds_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """M0 and M7 of the paper's Table 2 are published with GM 10.0 and 22.8."""
    (tmp_path / "m.csv").write_text(
        "step,score/accuracy,score/similarity,score/perplexity\n1,0.818,0.719,37.3\n"
        "2,0.818,0.805,29.0\n3,,,\n"
    )
    (found,) = shown([str(tmp_path / "m.csv")], tmp_path)["runs"]
    assert [row["gm"] for row in found["validations"]] == pytest.approx([10.0, 22.8], abs=0.05)
    assert found["metrics"]["accuracy"] == "score/accuracy"
    (tmp_path / "m.csv").write_text(
        "step,score/accuracy,score/similarity,score/perplexity\n1,0.5,0.719,37.3\n"
    )
    capsys.readouterr()
    main(["trajectories", str(tmp_path / "m.csv")])
    assert "GM is 0 at every validation, so its best is the first" in capsys.readouterr().out


def test_other_keys(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", FIRST, prefix="dev_")
    names = ("accuracy", "similarity", "perplexity", "gm")
    options = [f"--metrics.{name}=score/dev_{name}" for name in names]
    (found,) = shown([run, *options], tmp_path)["runs"]
    assert found["best"]["step"] == 15
    assert found["metrics"] == {name: f"score/dev_{name}" for name in names}


def test_incomplete_validations_are_left_out(tmp_path: Path) -> None:
    rows = {**FIRST, 25: (0.8, math.nan, 30.0, 20.0), 30: (0.79, 0.8, 30.0, math.nan)}
    (found,) = shown([write_run(tmp_path / "a", rows)], tmp_path)["runs"]
    assert [row["step"] for row in found["validations"]] == [5, 10, 15, 20, 30]
    assert found["validations"][-1]["gm"] is None
    assert (found["nearest"]["step"], found["best"]["step"]) == (30, 15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "No such file or folder: absent"),
        (["a.json"], "a.json has no steps, must be the folder of a logger"),
        (
            ["none.csv"],
            "none.csv has no score/corpus/similarity or score/similarity (did you mean similar?). "
            "Name its similarity by --metrics.similarity=KEY, one of score/accuracy, similar",
        ),
        (["run", "--metrics.gm=scores/gm"], "run has no scores/gm (did you mean score/gm?)"),
        (["apart.csv"], "apart.csv has no step with all of score/accuracy, score/similarity, s"),
        (["cent.csv"], "cent.csv: accuracy must be 0 to 1, a share, not per cent, got 81.8"),
        (["run", "--output=a.csv"], "--output must end in .json, got a.csv"),
        (["run", "--accuracy", "80"], "accuracy must be a share, 0 to 1, got 80.0"),
        (
            ["run", "--metrics.gm=score/gm", "--thresholds", "1", "2", "3", "4"],
            "metrics.gm and thresholds are both given: a GM is read or computed",
        ),
        ([], "RUN"),
    ],
)
def test_errors_name_the_fix(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[..., str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), FIRST)
    Path("a.json").write_text('{"score/accuracy": 1}')
    Path("none.csv").write_text("step,score/accuracy,similar\n1,0.8,0.5\n")
    header = "step,score/accuracy,score/similarity,score/perplexity\n"
    Path("apart.csv").write_text(f"{header}1,0.8,,30\n2,,0.8,\n")
    Path("cent.csv").write_text(f"{header}1,81.8,0.7,30\n")
    assert message in fails("trajectories", *arguments)
