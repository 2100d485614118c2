"""What a run left on disk: evidence as the scorer had it, and checkpoints by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.loggers import CSVLogger

from ctrlreward import Samples
from ctrlreward.runs.folder import find_checkpoints, read_stored_run
from ctrlreward.runs.stored_texts import sample_files
from ctrlreward.scorers.records import write_scored_samples


def test_names_of_checkpoints(tmp_path: Path) -> None:
    files = ["checkpoints/epoch=0-step=10.ckpt", "checkpoints/last.ckpt",
             "checkpoints/step=000020-sim=0.800.ckpt", "model_step_30.safetensors",
             "samples/score/step=000040.jsonl", "step=50.jsonl"]  # fmt: skip
    folders = ["checkpoint-60", "global_step_70", "_actor/global_step80", "best_global_step90",
               "checkpoints/step=000020-sim=0.800-adapter", "version_3"]  # fmt: skip
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkpoint-100").symlink_to("checkpoint-60")
    found = find_checkpoints([tmp_path])
    assert {step: [path.name for path in paths] for step, paths in found.items()} == {
        10: ["epoch=0-step=10.ckpt"],
        20: ["step=000020-sim=0.800.ckpt", "step=000020-sim=0.800-adapter"],
        30: ["model_step_30.safetensors"],
        60: ["checkpoint-60"],
        70: ["global_step_70"],
        80: ["global_step80"],
        90: ["best_global_step90"],
    }
    assert sample_files(tmp_path) == {"score": {40: tmp_path / files[4]}}


def test_checkpoints_of_another_run_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the folders are given."""
    for version, step in (("version_0", 10), ("version_1", 20)):
        (tmp_path / version / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        (tmp_path / version / "metrics.csv").write_text(f"step,x\n{step},1\n")
    monkeypatch.chdir(tmp_path)
    log = Path("version_1", "metrics.csv")
    for folder in (None, Path(), tmp_path):
        assert list(read_stored_run(log, folder).checkpoints) == [20]


class Epochs(BoringModel):
    """Module whose score is best after its second epoch of 64 batches."""

    def on_validation_epoch_end(self) -> None:
        self.log("sim", [0.5, 0.9, 0.7][self.current_epoch])


@pytest.mark.parametrize("log_every_n_steps", [1, 50])
def test_steps_of_lightning_are_those_of_its_checkpoints(
    tmp_path: Path, log_every_n_steps: int
) -> None:
    """Lightning logs a validation at the step before its checkpoint's."""
    trainer = quiet_trainer(
        enable_checkpointing=True,
        callbacks=[ModelCheckpoint(save_top_k=-1)],
        log_every_n_steps=log_every_n_steps,
        logger=CSVLogger(tmp_path, "csv"),
        max_epochs=3,
    )
    trainer.fit(Epochs())
    run = read_stored_run(tmp_path / "csv")
    found = {each.metrics["sim"]: each.step for each in run.steps if "sim" in each.metrics}
    assert list(found.values()) == [64, 128, 192]
    best = found[max(found)]
    saved = torch.load(run.checkpoints[best][0], weights_only=True, map_location="cpu")
    assert saved["global_step"] == best == 128


def test_a_scorer_that_measures_something_else_starts_a_new_reference(tmp_path: Path) -> None:
    """Also if its only two validations differ; rollouts, which note no measure, are by means."""
    for name, measures in (("score", ("a", "b")), ("rollout", ("", ""))):
        for step, measure in zip((1, 2), measures, strict=True):
            samples = Samples(["text"] * 3, prompts=[f"{step} {i}" for i in range(3)])
            path = tmp_path / "samples" / name / f"step={step:06d}.jsonl"
            write_scored_samples(path, samples, {"r": np.arange(3.0)}, measure=measure)
    run = read_stored_run(tmp_path)
    assert "from step 2 on" in run.notes["score"]
    assert "compared by means" in run.notes["rollout"]
    for each in run.steps:
        assert set(each.evidence) == {"score/r", "score/fail_rate"}


def test_what_was_scored_after_the_last_checkpoint(tmp_path: Path) -> None:
    """The log of transformers is the last checkpoint's, which `save_total_limit=1` may remove."""
    levels = {2: [1.0, 1.0, np.nan, 4.0], 4: [3.0, 5.0, np.nan, 7.0]}
    for step, values in levels.items():
        path = tmp_path / "samples" / "score" / f"step={step:06d}.jsonl"
        samples = Samples([*"abcd"], prompts=["p", "p", "q", "q"])
        write_scored_samples(path, samples, {"r": np.array(values)}, measure="m")
    (tmp_path / "checkpoint-2").mkdir()
    history = [{"step": 2, "eval_loss": 1.0, "eval_score/r": 2.0, "eval_score/fail_rate": 0.25}]
    log = tmp_path / "checkpoint-2" / "trainer_state.json"
    log.write_text(json.dumps({"log_history": history}))
    first, last = read_stored_run(tmp_path).steps
    assert (first.step, last.step) == (2, 4)
    assert first.metrics == {k: v for k, v in history[0].items() if k != "step"}
    assert last.metrics == {"eval_score/r": 5.0, "eval_score/fail_rate": 0.25}
    np.testing.assert_array_equal(last.evidence["eval_score/r"], [4, 7])
