"""Real runs of tiny trainers, read back from the offline files of Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def logger(tmp_path: Path) -> Callable[[], WandbLogger]:
    return lambda: WandbLogger(save_dir=tmp_path, offline=True)


def only_run(folder: Path) -> OfflineRun:
    (run,) = read_runs(folder)
    return run


# Curves


@pytest.mark.parametrize("updates", [1, 2])
def test_scores_are_drawn_over_the_step_of_their_texts(
    fit: Fit, counter, watch, logger, tmp_path, updates: int
) -> None:
    class Updating(counter):
        """Module that makes several updates per batch, each of which counts as a step."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = updates == 1

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.log("train/weight", self.weight.detach())
            loss = super().training_step(batch, batch_idx)
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                self.manual_backward(loss)
                for _ in range(updates):
                    optimizer.step()
            return loss

    callback = watch(VALUES, "vl")
    options: dict[str, Any] = {"max_steps": 4 * updates, "log_every_n_steps": 1}
    fit(Updating(), [callback], logger=logger(), **options)
    run = only_run(tmp_path)
    steps = [updates * validation for validation in (1, 2, 3, 4)]
    assert run.curve("score/scored_step", "score/v") == {step: VALUES[step] for step in steps}
    assert run.curve("score/scored_step", "score/l") == {step: 1 - VALUES[step] for step in steps}
    # The weight is the number of updates before the batch.
    assert run.curve("trainer/global_step", "train/weight") == {
        updates * (batch + 1): updates * batch for batch in range(4)
    }
    defined = run.definitions
    assert defined["*"].step_metric == "trainer/global_step"
    for key, best in {"score/v": "max", "score/l": "min", "score/fail_rate": "min"}.items():
        assert defined[key].step_metric == "score/scored_step"
        assert [name.name for name, _ in defined[key].summary.ListFields()] == sorted(
            [best, "last"], key=["min", "max", "mean", "best", "last"].index
        )
    drawn = [VALUES[step] for step in steps]
    assert run.summary["score/v"] == {"max": max(drawn), "last": drawn[-1]}
    assert run.summary["score/l"] == {"min": 1 - max(drawn), "last": 1 - drawn[-1]}


def test_a_prefix_of_the_logger_is_part_of_the_definitions(fit, counter, watch, tmp_path) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, prefix="mine")
    fit(counter(), [watch(VALUES)], max_steps=2, logger=logger)
    run = only_run(tmp_path)
    assert run.definitions["mine-score/v"].step_metric == "mine-score/scored_step"
    assert run.curve("mine-score/scored_step", "mine-score/v") == {1: 0.25, 2: 0.5}


# Rows of the user


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
    assert [*beside.curve("guard/tested_step", "guard/p_value")] == validated
    assert beside.definitions["guard/alarm"].step_metric == "guard/tested_step"
    assert sum("rollout/samples" in row for row in beside.rows) == 8


# Alerts


def test_each_begin_of_an_alarm_sends_an_alert(
    fit: Fit, counter, by_prompt, logger, tmp_path
) -> None:
    """Scores by prompt fall below the first ones, recover, and fall again."""
    case = ByPrompt("82283222", 8, None, 1, 2, b="12345678")
    for stop in (False, True):
        watch, *_ = by_prompt(case, tmp_path)
        guard = ProxyGuard("score/b", "score/a", stop=stop)
        with pytest.warns(UserWarning, match="ProxyGuard at step 2"):
            fit(counter(), [watch, guard], logger=logger())
        wandb.finish()
    run, stopped = read_runs(tmp_path)
    assert len([*stopped.of("alert")]) == 1
    alerts = list(run.of("alert"))
    begins = [f"ProxyGuard at step {step}" for step in (2, 5)]
    assert [alert.text.split(":")[0] for alert in alerts] == begins
    assert "while score/a since step 1: difference -0.75" in alerts[0].text
    assert {(a.level, a.title) for a in alerts} == {("WARN", "guard: possible reward hacking")}


# Tables


def test_tables_have_all_scores(fit: Fit, counter, watch, logger, tmp_path) -> None:
    class Writer(counter):
        """Module whose rollouts have a reward of two components; that of the second text failed."""

        last_rollout: tuple[Samples, RewardBatch] | None = None

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            total = np.array([batch_idx + 0.5, np.nan])
            components = {"relevance": total + 1, "fluency": total - 1}
            samples = Samples(
                [f"good {batch_idx}", f"bad {batch_idx}"],
                prompts=["Praise:", "Blame:"],
                labels=["positive", "negative"],
            )
            self.last_rollout = samples, RewardBatch(total, components, np.isnan(total), 0.0)
            return super().training_step(batch, batch_idx)

    scorer = watch([0.0, 0.25, float("nan")], "vl", table_rows=2)
    fit(Writer(), [scorer, RolloutSamples(every_n_batches=1)], max_steps=2, logger=logger())
    run = only_run(tmp_path)
    rollouts = [row for row in run.rows if "rollout/samples" in row]
    assert [row["trainer/global_step"] for row in rollouts] == [1, 2]
    table = run.table(rollouts[1], "rollout/samples")
    assert table["columns"] == ["prompt", "label", "text", "relevance", "fluency", "total"]
    assert table["data"] == [
        ["Praise:", "positive", "good 1", 2.5, 0.5, 1.5],
        ["Blame:", "negative", "bad 1", None, None, None],
    ]
    scored = [row for row in run.rows if "score/samples" in row]
    assert [row["score/scored_step"] for row in scored] == [1, 2]
    first, second = (run.table(row, "score/samples") for row in scored)
    assert first["columns"] == ["prompt", "label", "text", "v", "l"]
    for row in first["data"]:
        row[2] = row[2].rsplit(" ", 1)[0]  # without its random number
    assert first["data"] == [  # evenly spaced
        ["Praise: The food", "positive", "The food at 1", 0.25, 0.75],
        ["Praise: A dog", "negative", "A dog at 1", 0.25, 0.75],
    ]
    assert [row[3:] for row in second["data"]] == [[None, None], [None, None]]
