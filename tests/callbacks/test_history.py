from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path

import pytest
from lightning_choice import (
    LIGHTNING,
    HistoryLogger,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
    quiet_trainer,
)

from ctrlreward.files import JsonLog
from ctrlreward.runs.folder import read_stored_run


def test_each_call_writes_one_line_at_once(tmp_path: Path) -> None:
    logger = HistoryLogger(str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()  # created by the first row
    logger.log_metrics({"a": 1.5, "b": 2}, step=0)
    logger.log_metrics({"a": math.nan, "c": math.inf}, step=3)
    logger.log_metrics({"a": 0.5})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"step": 0, "a": 1.5, "b": 2.0},
        {"step": 3, "a": None, "c": None},
        {"step": 0, "a": 0.5},
    ]


def test_checkpoints_are_in_the_folder_of_the_run(tmp_path: Path) -> None:
    """Lightning's own checkpoint, without a folder, goes to a path of the logger's properties."""
    logger = HistoryLogger(str(tmp_path / "run"))
    trainer = pl.Trainer(logger=logger, max_steps=1, enable_progress_bar=False)
    trainer.fit(import_module(f"{LIGHTNING}.demos.boring_classes").BoringModel())
    kept = [path.parent for path in tmp_path.rglob("*.ckpt")]
    assert kept == [tmp_path / "run" / "checkpoints"]


@pytest.mark.parametrize(("start", "rows"), [(3, [0, 0, 1, 1, 2, 2, 30, 30]), (0, [30, 30])])
def test_a_resumed_run_replaces_the_rows_that_it_repeats(tmp_path: Path, start: int, rows) -> None:
    first = HistoryLogger(str(tmp_path))
    for step in range(5):
        first.log_metrics({"a": step}, step)
        first.log_metrics({"a": step}, step)
    second = HistoryLogger(str(tmp_path))
    second.replaces_rows = True  # set by callbacks in a fit
    second.log_metrics({"a": 30}, start)
    second.log_metrics({"a": 30}, start)  # the same run: nothing is removed
    assert [row["a"] for row in JsonLog(first.path).read()] == rows


def test_a_test_without_our_callbacks_keeps_the_log(tmp_path: Path) -> None:
    class Tested(import_module(f"{LIGHTNING}.demos.boring_classes").BoringModel):
        def test_step(self, batch: object, batch_idx: int) -> None:
            self.log("test", 1.0)

    HistoryLogger(str(tmp_path)).log_metrics({"a": 1.0}, 3)
    logger = HistoryLogger(str(tmp_path))
    pl.Trainer(logger=logger, enable_progress_bar=False).test(Tested(), verbose=False)
    assert [row["step"] for row in JsonLog(logger.path).read()] == [3, 0]


def test_no_callback_changes_the_steps_of_the_users_loggers(tmp_path: Path) -> None:
    """Lightning's are one less than those of our logger, with and without our callbacks."""
    csv = import_module(f"{LIGHTNING}.loggers").CSVLogger

    class Logs(import_module(f"{LIGHTNING}.demos.boring_classes").BoringModel):
        def training_step(self, batch: object, batch_idx: int) -> object:
            self.log("now", float(self.global_step))
            return super().training_step(batch, batch_idx)

    def rows(folder: Path, callbacks: list[pl.Callback]) -> tuple[list[str], list[dict]]:
        logger = HistoryLogger(str(folder))
        options = {"limit_val_batches": 1, "max_steps": 2, "log_every_n_steps": 1}
        quiet_trainer(callbacks=callbacks, logger=[csv(folder, "csv"), logger], **options).fit(
            Logs()
        )
        text = (folder / "csv" / "version_0" / "metrics.csv").read_text()
        return text.splitlines(), JsonLog(logger.path).read()

    alone, _ = rows(tmp_path / "alone", [])
    beside, ours = rows(tmp_path / "beside", [RewardEarlyStopping("now", "max")])
    assert beside == alone
    assert [row["step"] for row in ours] == [1, 2]


@pytest.mark.parametrize("order", [1, -1])
def test_texts_and_checkpoints_are_found_from_our_log(fit, counter, watch, tmp_path, order) -> None:
    """Also if another logger, whose folder is the trainer's `log_dir`, comes before it."""
    csv = import_module(f"{LIGHTNING}.loggers").CSVLogger
    loggers = [csv(tmp_path, "csv"), HistoryLogger(str(tmp_path))][::order]
    keeper = RewardCheckpoint("score/v")
    fit(counter(), [watch([0.25, 0.75, 0.5], "vl"), keeper], logger=loggers, max_steps=2)
    run = read_stored_run(tmp_path)
    assert [each.step for each in run.steps if "score/v" in each.evidence] == [1, 2]
    assert str(run.checkpoints[1][0]) == keeper.best_model_path
