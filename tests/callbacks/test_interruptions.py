"""Runs that are interrupted in real processes, and resumed; cut checkpoints and full disks."""

from __future__ import annotations

import json
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import left_by_killed
from lightning_choice import HistoryLogger, RewardCheckpoint
from module_files import load
from warm_python import WarmProcess

from ctrlreward.files import JsonLog
from ctrlreward.selection import BestRule

SCRIPT = Path(__file__).with_name("interrupted_runs.py")
interrupted_runs = load(SCRIPT)
RUNS = ("raise", "sigterm", "sigkill")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    interrupted_runs.fit(folder / "whole")
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, dict[str, Any]]:
    """Files that each interrupted run leaves; then it is resumed."""
    found = {}
    for how in RUNS:
        place = folder / how
        place.mkdir()
        errors = place / "errors"
        process = WarmProcess([SCRIPT, how, place], place / "output", errors)
        if how == "sigterm":
            while not (place / "ready").exists():
                assert process.wait(0.02) is None, errors.read_text()
            process.end(signal.SIGTERM)
        code = process.wait(interrupted_runs.LIMIT)
        process.end(signal.SIGKILL)
        kept = place / "kept"
        found[how] = {
            "code": code,
            "unfinished": [p.name.split(".")[:3] for p in kept.iterdir() if p.name.startswith(".")],
            "whole": [weight_of(path) for path in sorted(kept.glob("*.ckpt"))],
            "rows": (place / "metrics.jsonl").read_text().splitlines(),
            "texts": sorted(path.name for path in (place / "samples" / "score").iterdir()),
        }
        for name in ("samples/score/step=000009.jsonl", "kept/last.ckpt"):
            left_by_killed(place / name).write_text("half of")
        left_by_killed(kept / "step=3-adapter").mkdir()
        interrupted_runs.fit(place, ckpt_path="last")
    return found


def weight_of(path: Path) -> float:
    """Return the weight in a checkpoint, and compare it with the exported adapter."""
    weight = torch.load(path, weights_only=True)["state_dict"]["weight"].item()
    adapter = path.with_name(f"{path.stem}-adapter") / "weight"
    assert path.name == "last.ckpt" or float(adapter.read_text()) == weight
    return float(weight)


@pytest.mark.parametrize("run", RUNS)
def test_what_an_interrupted_run_leaves(run: str, folder: Path, ended) -> None:
    left = ended[run]
    # Lightning's SIGTERMException is a SystemExit without a code: status 0.
    assert left["code"] == {"raise": 1, "sigterm": 0, "sigkill": -9}[run]
    if run != "sigkill":
        seen = json.loads((folder / run / "seen.json").read_text())
        expected = {"raise": "ValueError: the loss is gone", "sigterm": "SIGTERMException: "}
        assert seen["raised"] == expected[run]
        assert [name for name in seen["threads"] if name.startswith("ctrlreward")] == []
    # A run killed while writing the third `last.ckpt` still has the second; on SIGTERM, the current
    # batch and the validation after it are finished.
    last, *best = left["whole"]
    ends = {"raise": (4, [2, 4]), "sigterm": (6, [4, 6]), "sigkill": (4, [4, 6])}
    assert (last, best) == ends[run]
    assert left["unfinished"] == [["", "last", "ckpt"]] * (run == "sigkill")
    steps = [row["step"] for row in map(json.loads, left["rows"]) if "loss" in row]
    assert steps == list(range(1, 6 if run == "raise" else 7))
    written = (2, 4) if run == "raise" else (2, 4, 6)
    assert left["texts"] == [f"step={step:06d}.jsonl" for step in written]


@pytest.mark.parametrize("run", RUNS)
def test_a_resumed_run_neither_loses_nor_repeats_a_row(run: str, folder: Path, ended) -> None:
    whole, kept = folder / "whole", folder / run / "kept"
    rows = JsonLog(whole / "metrics.jsonl").read()
    assert JsonLog(folder / run / "metrics.jsonl").read() == rows
    assert len(rows) > 8
    for path in (whole / "kept").glob("*.ckpt"):
        assert weight_of(kept / path.name) == weight_of(path)
    for path in (whole / "samples" / "score").iterdir():
        assert (folder / run / "samples" / "score" / path.name).read_text() == path.read_text()
    assert [*(folder / run).rglob(".*")] == []
    noted = json.loads((folder / run / "decisions.json").read_text())
    assert [*noted["folders"]] == ["kept"]
    assert BestRule(**noted["rules"]["BestRule"]) == BestRule("held_out", "max", 2)
    assert noted["directions"]["score/v"] == "max"


def test_a_rank_ends_soon_after_the_scoring_rank_has_died(tmp_path: Path) -> None:
    arguments = [SCRIPT, "kill the scoring rank", tmp_path]
    process = WarmProcess(arguments, tmp_path / "output", tmp_path / "errors")
    assert process.wait(200) == 1  # the ranks' own limit is half an hour
    said = (tmp_path / "rank1").read_text()
    assert re.search("Connection (closed|reset) by peer", said), said
    saved = torch.load(tmp_path / "kept" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 4


def callbacks(watch: Any, folder: Path) -> list[Any]:
    keeper = RewardCheckpoint("score/v", "max", dirpath=str(folder / "kept"))
    return [watch([0.125 * i for i in range(9)]), keeper]


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_a_checkpoint_that_was_cut_off_is_named(
    keep: float, fit, counter, watch, tmp_path: Path
) -> None:
    fit(counter(), callbacks(watch, tmp_path), max_steps=2)
    last, best = tmp_path / "kept" / "last.ckpt", tmp_path / "kept" / "step=000002-v=0.250.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(Exception) as raised:  # noqa: PT011 — EOFError, OSError or RuntimeError
        fit(counter(), callbacks(watch, tmp_path), ckpt_path="last", max_steps=4)
    (note,) = raised.value.__notes__
    assert str(last) in note
    assert best.name in note
    trainer = fit(counter(), callbacks(watch, tmp_path), ckpt_path=best, max_steps=4)
    assert trainer.global_step == 4


SAMPLES = "samples/score/step=000002.jsonl"


@pytest.mark.parametrize(
    ("size", "file", "kept"),
    [
        (400, SAMPLES, ["decisions.json"]),
        (1000, "kept/step=000002-v=0.250.ckpt", ["decisions.json", "metrics.jsonl", SAMPLES]),
    ],
)
def test_a_full_disk_is_named_and_the_run_goes_on_from_there(
    size: int, file: str, kept: list[str], fit, counter, watch, tmp_path: Path
) -> None:
    def run() -> None:
        options = {"val_check_interval": 2, "max_steps": 4}
        logger = HistoryLogger(str(tmp_path))
        fit(counter(), callbacks(watch, tmp_path), logger=logger, **options)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.filename == str(tmp_path / file)
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(found) == kept
    run()
    rows = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4]
