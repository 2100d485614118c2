"""Real runs of tiny trainers, read back from the offline files of Weights & Biases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import wandb
import yaml
from decision_cases import ByPrompt
from lightning_choice import (
    NAME,
    BeforeAfter,
    MisconfigurationException,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    RolloutSamples,
    WandbLogger,
    WandbReport,
    pl,
)
from wandb_runs import OfflineRun, read_files, read_runs

from ctrlreward import RewardBatch, Samples

Fit = Callable[..., pl.Trainer]

VALUES = [0.0, 0.25, 0.5, 0.75, 0.375, 0.625, 0.125, 0.0, 0.0]
BASE = "tiny-base"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep artifacts in the test's folder, and end a run that a failed test has left."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_MODE", "offline")  # which Lightning sets, too
    yield
    wandb.finish()
    wandb.teardown()


@pytest.fixture
def tuned(counter: type) -> type[pl.LightningModule]:
    class Tuned(counter):  # type: ignore[misc, valid-type]
        """Module that logs in training and exports its weight as an adapter of peft."""

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.log("train/weight", self.weight.detach())
            return super().training_step(batch, batch_idx)

        def export_adapter(self, folder: str) -> None:
            config = {"base_model_name_or_path": BASE, "weight": self.weight.item()}
            (Path(folder) / "adapter_config.json").write_text(json.dumps(config))

    return Tuned


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., pl.Callback]:
    def build(**options: Any) -> pl.Callback:
        return WandbReport(WandbLogger(save_dir=tmp_path, offline=True), **options)

    return build


def only_run(folder: Path) -> OfflineRun:
    (run,) = read_runs(folder)
    return run


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., pl.Callback]:
    def build(**options: Any) -> pl.Callback:
        return RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), **options)

    return build


# Curves


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("updates", [1, 2])
def test_scores_are_drawn_over_the_step_of_their_texts(
    fit: Fit, tuned, watch, report, tmp_path, overlap: bool, updates: int
) -> None:
    class Updating(tuned):
        """Module that makes several updates per batch, each of which counts as a step."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = updates == 1

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                self.manual_backward(loss)
                for _ in range(updates):
                    optimizer.step()
            return loss

    callback = watch(VALUES, "vl", overlap=overlap)
    fit(Updating(), [callback, report()], max_steps=4 * updates, log_every_n_steps=1)
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


@pytest.mark.parametrize("rows", ["training", "validation"])
@pytest.mark.parametrize("step", ["below", "equal", "above", "none"])
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


# Summary


def test_the_summary_has_best_scores_and_the_selection(
    fit: Fit, tuned, curve, held_out, watch, kept, report, tmp_path
) -> None:
    scorer = curve(VALUES)
    keeper = kept(constraints={"score/l": (0.375, None)})  # excludes the best value, at step 3
    stopper = RewardEarlyStopping("score/v", patience=3)
    compared = BeforeAfter({"v": scorer["value"]}, held_out, generations_per_prompt=1)
    fit(tuned(), [report(), watch(scorer, "vl"), stopper, keeper, compared])
    summary = only_run(tmp_path).summary
    assert summary["best/score/v"] == {"value": 0.75, "step": 3}
    assert summary["best/score/l"] == {"value": 0.25, "step": 3}
    assert (summary["selected/step"], summary["selected/score/v"]) == (5, 0.625)
    assert summary["selected/constraints"] == {"score/l": [0.375, None]}
    assert summary["selected/constraints_met"] is True
    assert summary["stopped_by"] == "patience_exhausted"
    assert "has not improved" in summary["stopped_because"]
    written = json.loads((tmp_path / "summary.json").read_text())
    assert summary["report"] == written
    assert written["after"]["v"] == 0.625


def test_a_run_that_meets_no_constraint_logs_no_adapter(
    fit: Fit, tuned, watch, kept, report, tmp_path
) -> None:
    keeper = kept(constraints={"score/v": (0.9, None)})
    with pytest.warns(UserWarning, match="no candidate among 1 validation, so"):
        fit(tuned(), [watch([0.0, float("nan"), 0.5]), keeper, report()], max_steps=2)
    run = only_run(tmp_path)
    assert run.summary["selected/constraints_met"] is False
    assert run.summary["selected/step"] is None
    assert run.summary["best/score/v"] == {"value": 0.5, "step": 2}
    assert "stopped_by" not in run.summary
    assert "report" not in run.summary
    assert run.models() == []


def test_a_failed_run_has_its_last_decisions(fit, tuned, watch, kept, report, tmp_path) -> None:
    class Failing(tuned):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if self.global_step == 3:
                raise ValueError("the loss is gone")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="the loss is gone"):
        fit(Failing(), [report(), watch(VALUES), kept()])
    run = only_run(tmp_path)
    assert (run.summary["selected/step"], run.summary["selected/score/v"]) == (3, 0.75)
    assert run.models() == []


# Alerts


def test_each_begin_of_an_alarm_sends_an_alert(
    fit: Fit, counter, by_prompt, report, tmp_path
) -> None:
    """Scores by prompt fall below the first ones, recover, and fall again."""
    case = ByPrompt("82283222", 8, None, 1, 2, b="12345678")
    for stop in (False, True):
        watch, *_ = by_prompt(case, tmp_path)
        guard = ProxyGuard("score/b", "score/a", stop=stop)
        with pytest.warns(UserWarning, match="ProxyGuard at step 2"):
            fit(counter(), [watch, guard, report()])
        wandb.finish()
    run, stopped = read_runs(tmp_path)
    assert [one.summary["guard/alarm_step"] for one in (run, stopped)] == [2, 2]
    assert [one.summary.get("stopped_by") for one in (run, stopped)] == [None, "guard"]
    alerts = list(run.of("alert"))
    begins = [f"ProxyGuard at step {step}" for step in (2, 5)]
    assert [alert.text.split(":")[0] for alert in alerts] == begins
    assert "while score/a since step 1: difference -0.75" in alerts[0].text
    assert {(a.level, a.title) for a in alerts} == {("WARN", "guard: possible reward hacking")}


# The adapter


@pytest.mark.lightning
def test_the_selected_adapter_is_an_artifact(fit, tuned, watch, kept, report, tmp_path) -> None:
    keeper = kept(constraints={"score/fail_rate": (None, 0.5)})
    trainer = fit(tuned(), [watch(VALUES), keeper, report()], max_steps=4)
    trainer.fit_loop.epoch_loop.max_steps = 5
    trainer.fit(tuned())  # a second fit of the same trainer selects the same weights
    run = only_run(tmp_path)
    (artifact,) = run.models()
    assert artifact.name == f"adapter-{run.id}"
    assert {"best", "step-3"} <= set(artifact.aliases)
    metadata = json.loads(artifact.metadata)
    assert metadata.pop("selected/reason").startswith("score/v is 0.7500 at step 3, not disting")
    assert metadata == {
        "selected/step": 3,
        "selected/score/v": 0.75,
        "selected/constraints": {"score/fail_rate": [None, 0.5]},
        "selected/constraints_met": True,
        "base_model": BASE,
    }
    (file,) = artifact.manifest.contents
    content = json.loads(Path(file.local_path).read_text())
    assert (file.path, content["weight"]) == ("adapter_config.json", 3.0)


def test_the_adapter_of_a_pareto_front(fit: Fit, tuned, watch, report, tmp_path) -> None:
    front = ParetoCheckpoint({"score/v": "max", "score/l": "min"}, dirpath=str(tmp_path / "front"))
    fit(tuned(), [watch(VALUES, "vl"), front, report()], max_steps=4)
    run = only_run(tmp_path)
    (artifact,) = run.models()
    assert {"best", "step-3"} <= set(artifact.aliases)
    assert front.selected_step == run.summary["selected/step"] == 3
    assert "selected/constraints" not in run.summary


def test_nothing_is_uploaded_unless_wanted(fit: Fit, tuned, watch, kept, report, tmp_path) -> None:
    fit(tuned(), [watch(VALUES), kept(), report(log_adapter=False)])
    run = only_run(tmp_path)
    assert run.summary["selected/step"] == 3
    assert run.models() == []


# Resuming


@pytest.mark.lightning
def test_a_resumed_training_continues_its_run(fit, tuned, watch, kept, report, tmp_path) -> None:
    fit(tuned(), [report(), watch(VALUES), kept()], max_steps=4)
    wandb.finish()
    fit(tuned(), [report(), watch(VALUES), kept()], max_steps=6, ckpt_path="last")
    wandb.finish()
    fit(tuned(), [report(), watch(VALUES)], max_steps=1)
    first, second, fresh = read_runs(tmp_path)
    assert first.id == second.id != fresh.id
    assert [run.start.resume for run in (first, second)] == [True, True]
    x, y = "score/scored_step", "score/v"
    assert first.curve(x, y) == {step: VALUES[step] for step in (1, 2, 3, 4)}
    assert second.curve(x, y) == {step: VALUES[step] for step in (5, 6)}
    assert second.summary["best/score/v"] == {"value": 0.75, "step": 3}  # of the first part
    (before,), (after,) = first.models(), second.models()
    assert (before.name, before.digest) == (after.name, after.digest)  # the same version in W&B
    numbers = [row["_step"] for run in (first, second) for row in run.rows]
    assert numbers == list(range(len(numbers)))  # rows of one run have numbers of their own


def test_an_id_given_to_the_logger_has_priority(fit: Fit, tuned, report, tmp_path) -> None:
    keeper = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "kept", save_last=True)
    fit(tuned(), [report(), keeper], max_steps=2)
    wandb.finish()
    mine = WandbReport(WandbLogger(save_dir=tmp_path, offline=True, id="my run"))
    fit(tuned(), [mine], max_steps=3, ckpt_path=tmp_path / "kept" / "last.ckpt")
    _, second = read_runs(tmp_path)
    assert second.id == mine.run_id == "my run"


def test_a_killed_offline_run_is_on_disk(fit: Fit, tuned, report, tmp_path) -> None:
    fit(tuned(), [report()], max_steps=2, log_every_n_steps=1)
    until = time.monotonic() + 5  # W&B's default is 15 s
    curve: dict[float, float] = {}
    while time.monotonic() < until and len(curve) < 2:
        time.sleep(0.1)
        for run in read_files(tmp_path):
            curve = run.curve("trainer/global_step", "train/weight")
    assert curve == {1: 0, 2: 1}


def test_a_logger_of_the_trainer_is_used_and_its_new_run_named(
    fit: Fit, tuned, watch, kept, tmp_path
) -> None:
    def run(report: pl.Callback, **options: Any) -> None:
        logger = WandbLogger(save_dir=tmp_path, offline=True)
        fit(tuned(), [watch(VALUES), report, kept()], logger=logger, **options)

    report = WandbReport()
    run(report, max_steps=2)
    first = report.run_id
    wandb.finish()
    message = f"belongs to the Weights & Biases run {first}, .* WandbLogger\\(id='{first}'\\)"
    with pytest.warns(UserWarning, match=message):
        run(WandbReport(), max_steps=3, ckpt_path="last")
    runs = read_runs(tmp_path)
    assert runs[0].id == first != runs[1].id
    assert [run.summary["selected/step"] for run in runs] == [2, 3]


@pytest.mark.skipif(NAME != "pytorch_lightning", reason="the command uses pytorch_lightning")
def test_the_command_continues_the_run_without_a_word(tmp_path: Path, monkeypatch) -> None:
    from ctrlreward.jobs.train import run as train

    def entry(path: str, **arguments: Any) -> dict[str, Any]:
        return {"class_path": path, "init_args": arguments}

    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command's own
    save_dir = str(tmp_path)
    logger = entry("pytorch_lightning.loggers.WandbLogger", save_dir=save_dir, offline=True)
    checkpoints = "pytorch_lightning.callbacks.ModelCheckpoint"
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "callbacks": [
            entry("ctrlreward.callbacks.WandbReport", logger=logger),
            entry(checkpoints, dirpath=str(tmp_path / "kept"), save_last=True),
        ],
        "default_root_dir": save_dir,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "logger": entry("ctrlreward.callbacks.HistoryLogger", folder=save_dir),
    }
    config = {
        "model": {"class_path": "pytorch_lightning.demos.boring_classes.BoringModel"},
        "data": {"class_path": "pytorch_lightning.demos.boring_classes.BoringDataModule"},
        "trainer": options,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    for arguments in (["max_steps=1"], ["max_steps=2"]), (["max_steps=3"],):
        for option in arguments:
            train([str(tmp_path / "config.yaml"), *(f"--trainer.{one}" for one in option)])
            wandb.finish()
    resumed = ["--trainer.max_steps=4", "--ckpt_path=last"]
    train([str(tmp_path / "config.yaml"), *resumed])
    assert wandb.run is not None
    assert wandb.run.settings.x_transaction_log_flush_interval == 1.0  # as without the command
    ids = [run.id for run in read_runs(tmp_path)]
    assert len(set(ids[:3])) == 3
    assert ids[3] == ids[2]


# Tables


def test_tables_have_all_scores(fit: Fit, counter, watch, report, tmp_path) -> None:
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
    fit(Writer(), [scorer, RolloutSamples(every_n_batches=1), report()], max_steps=2)
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


# Starts and errors


def test_an_offline_run_prints_how_to_upload_it_and_nothing_else(
    fit: Fit, counter, report, tmp_path: Path, monkeypatch, capfd
) -> None:
    monkeypatch.delenv("WANDB_SILENT")
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # reads the environment anew at the next start
    capfd.readouterr()
    new = WandbReport(WandbLogger(save_dir="runs/new", offline=True))
    fit(counter(), [new], max_steps=1)
    wandb.termwarn("a warning")
    wandb.finish()
    wandb.teardown()
    printed = capfd.readouterr()
    (folder,) = (tmp_path / "runs" / "new" / "wandb").glob("offline-run-*")
    pattern = f"runs/new/wandb/offline-run-*-{new.run_id}*"
    assert printed.out == f"Weights & Biases: wandb sync {pattern}\n"
    assert printed.err == "wandb: WARNING a warning\n"
    assert list(tmp_path.glob(pattern)) == [folder]


def test_fast_dev_run_starts_no_run(fit: Fit, counter, report, tmp_path) -> None:
    callback = report()
    fit(counter(), [callback], fast_dev_run=True)
    fit(counter(), [WandbReport()], fast_dev_run=True)
    assert callback.run_id == ""
    assert not (tmp_path / "wandb").exists()


def test_one_logger_is_needed(fit: Fit, counter, report, tmp_path) -> None:
    with pytest.raises(MisconfigurationException, match=r"Use WandbReport\(WandbLogger\(project"):
        fit(counter(), [WandbReport()])
    both: Sequence[Any] = [WandbLogger(save_dir=tmp_path, offline=True)]
    with pytest.raises(MisconfigurationException, match="Pass a WandbLogger to WandbReport alone"):
        fit(counter(), [report()], logger=both)
