"""Real runs of tiny trainers, read back from the offline files of Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb
from decision_cases import ByPrompt
from lightning_choice import ProxyGuard, RolloutSamples, WandbLogger, pl
from thinned import thinned
from wandb_runs import OfflineRun, read_runs

from ctrlreward import RewardBatch, Samples

Fit = Callable[..., pl.Trainer]

VALUES = [0.0, 0.25, 0.5, 0.75, 0.375, 0.625, 0.125, 0.0, 0.0]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep artifacts in the test's folder, and end a run that a failed test has left."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_MODE", "offline")  # which Lightning sets, too
    yield
    wandb.finish()
    wandb.teardown()


def only_run(folder: Path) -> OfflineRun:
    (run,) = read_runs(folder)
    return run


def test_scores_are_drawn_over_the_step_of_their_texts(fit: Fit, counter, watch, tmp_path) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, prefix="mine")
    fit(counter(), [watch(VALUES, "vl")], max_steps=4, logger=logger, log_every_n_steps=1)
    run, step = only_run(tmp_path), "mine-score/scored_step"
    drawn = {i: VALUES[i] for i in (1, 2, 3, 4)}
    assert run.curve(step, "mine-score/v") == drawn
    assert run.curve(step, "mine-score/l") == {i: 1 - value for i, value in drawn.items()}
    for key, best in {"score/v": "max", "score/l": "min", "score/fail_rate": "min"}.items():
        defined = run.definitions[f"mine-{key}"]
        assert defined.step_metric == step
        assert {name.name for name, _ in defined.summary.ListFields()} == {best, "last"}
    assert run.summary["mine-score/v"] == {"max": 0.75, "last": VALUES[4]}
    assert run.summary["mine-score/l"] == {"min": 0.25, "last": 1 - VALUES[4]}


@pytest.mark.parametrize(
    ("step", "rows"), thinned(("below", "equal", "above", "none"), ("training", "validation"))
)
def test_callbacks_advance_no_step_of_the_user(
    fit: Fit, counter, watch, tmp_path, rows: str, step: str
) -> None:
    """A user logs at each step, and the module in training or in validation. All of it is there."""

    class User(counter):
        last_rollout: tuple[Samples, RewardBatch] | None = None

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            now = self.global_step
            at = {"below": now // 2, "equal": now, "above": now + 1, "none": None}[step]
            wandb.log({f"user/{now}": now}, step=at)
            if rows == "training":
                self.log("train/now", float(now))
            rewards = np.ones(1)
            self.last_rollout = Samples(["a"]), RewardBatch(rewards, {}, np.isnan(rewards), 0.0)
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            if rows == "validation":  # after the callbacks
                self.log("val/proxy", float(self.global_step))

    def run(name: str, *callbacks: pl.Callback) -> OfflineRun:
        folder = tmp_path / name
        folder.mkdir()
        logger = WandbLogger(save_dir=folder, offline=True)
        assert logger.experiment  # starts the run of `wandb.log`
        every = 1 if rows == "training" else 50
        fit(User(), callbacks, logger=logger, log_every_n_steps=every)
        return only_run(folder)

    def logged(run: OfflineRun) -> list[str]:
        return sorted(key for row in run.rows for key in row if key.startswith(("user/", "val/")))

    guard = ProxyGuard("val/proxy" if rows == "validation" else "score/v", "score/l", "max")
    ours = watch(VALUES, "vl"), guard, RolloutSamples(every_n_batches=1)
    alone, beside = run("alone"), run("beside", *ours)
    assert logged(beside) == logged(alone)
    if step != "below":
        assert sum(key.startswith("user/") for key in logged(beside)) == 8
    validated = list(range(1, 9))
    curve = beside.curve("score/scored_step", "score/v")
    assert curve == {step: VALUES[step] for step in validated}
    tables = [row for row in beside.rows if "score/samples" in row]
    assert [row["score/scored_step"] for row in tables] == validated
    texts = [beside.table(row, "score/samples")["data"][0][2] for row in tables]
    assert [text.split()[3] for text in texts] == [str(step) for step in validated]
    table = beside.table(tables[0], "score/samples")
    assert table["columns"] == ["prompt", "label", "text", "v", "l"]
    assert [row[3:] for row in table["data"]] == [[0.25, 0.75]] * 3
    assert [*beside.curve("guard/tested_step", "guard/p_value")] == validated
    assert beside.definitions["guard/alarm"].step_metric == "guard/tested_step"
    assert sum("rollout/samples" in row for row in beside.rows) == 8


def test_each_begin_of_an_alarm_sends_an_alert(fit: Fit, counter, by_prompt, tmp_path) -> None:
    """Scores by prompt fall below the first ones, recover, and fall again."""
    case = ByPrompt("82283222", 8, None, 1, 2, b="12345678")
    scorer, *_ = by_prompt(case, tmp_path)
    guard = ProxyGuard("score/b", "score/a")
    with pytest.warns(UserWarning, match="ProxyGuard at step 2"):
        fit(counter(), [scorer, guard], logger=WandbLogger(save_dir=tmp_path, offline=True))
    alerts = list(only_run(tmp_path).of("alert"))
    begins = [f"ProxyGuard at step {step}" for step in (2, 5)]
    assert [alert.text.split(":")[0] for alert in alerts] == begins
    assert "while score/a since step 1: difference -0.75" in alerts[0].text
    assert {(a.level, a.title) for a in alerts} == {("WARN", "guard: possible reward hacking")}
