from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_choice import (
    BeforeAfter,
    CSVLogger,
    GenerationScorer,
    HistoryLogger,
    MisconfigurationException,
    ParetoCheckpoint,
    RewardCheckpoint,
    RewardEarlyStopping,
    RolloutSamples,
    pl,
    quiet_trainer,
)

from ctrlreward import RewardBatch, Samples
from ctrlreward.files import JsonLog
from ctrlreward.runs.logs import read_log
from ctrlreward.scorers.records import read_scored_file

# Logging


@pytest.mark.lightning
def test_scores_are_logged_and_written(fit, counter, curve, watch, held_out, tmp_path) -> None:
    """Of two scorers and a function, in one call each; a failed sample is in no mean."""
    one, other, module = curve([0.0, 0.25, np.nan]), curve([0.0, 0.5, 0.5]), counter()
    spread = [np.inf, 0.5, 0.25, 0.25, 0.25, 0.25]

    def odd(texts: list[str]) -> list[float]:
        return spread

    scores = {"v": one["value"], "l": one["loss"], "other": other["value"], "odd": odd}
    callback, second = watch(scores, generations_per_prompt=2), watch([0.0, 0.75], name="second")
    logger = CSVLogger(tmp_path, name="run", version=0)
    trainer = fit(module, [callback, second], max_steps=1, logger=logger)
    keys = [f"score/{key}" for key in (*scores, "fail_rate")] + ["second/v", "second/fail_rate"]
    logged = [float(trainer.callback_metrics[key]) for key in keys]
    assert logged == pytest.approx([0.25, 0.75, 0.5, 0.3, 1 / 6, 0.75, 0.0])
    (scored,) = one.scored
    assert len(other.scored) == 1
    assert scored.labels == ("positive",) * 4 + ("negative",) * 2
    assert all(text.startswith("The food at 1 ") for text in scored.texts[:2])
    prompts = [p for p in held_out.prompts for _ in range(2)]
    assert module.calls[0] == {"prompts": prompts, "training": False, "gradients": False}
    assert callback.folder == tmp_path / "run" / "version_0" / "samples" / "score"
    (file,) = callback.folder.iterdir()
    assert file.name == "step=000001.jsonl"
    assert Samples.from_jsonl(file) == scored
    rows = [json.loads(line)["scores"] for line in file.read_text().splitlines()]
    assert [row["v"] for row in rows] == [0.25] * 6
    assert [row["odd"] for row in rows] == [None, *spread[1:]]
    module.weight.data.fill_(2.0)  # all samples of the first scorer fail
    (failed,) = trainer.validate(module, verbose=False)
    assert np.isnan(failed["score/v"])
    assert failed["score/fail_rate"] == 1


# Schedule and side effects


def test_every_other_validation_but_the_sanity_check_also_after_a_resume(
    fit, counter, curve, watch, tmp_path
) -> None:
    scorer, options = curve([0.0]), {"seed": 4, "every_n_validations": 2}
    trainer = fit(counter(), [watch(scorer, **options)], max_steps=5, num_sanity_val_steps=1)
    trainer.save_checkpoint(tmp_path / "at5.ckpt")
    resumed = watch(scorer, **options)
    fit(counter(), [resumed], max_steps=7, ckpt_path=tmp_path / "at5.ckpt")
    words = [[text.split() for text in samples.texts] for samples in scorer.scored]
    assert [rows[0][3] for rows in words] == ["2", "4", "6"]
    noise = [tuple(row[-1] for row in rows) for rows in words]
    assert len(set(noise)) == 1  # the same seed at each
    assert len(set(noise[0])) == 3
    assert (resumed.validations, resumed.last_scored_step, resumed.has_new_scores) == (7, 6, False)


@pytest.mark.lightning
def test_fast_dev_run_scores_two_samples_and_neither_stops_nor_writes(
    fit, tuned, curve, watch, tmp_path
) -> None:
    scorer, stopper = curve([np.nan]), RewardEarlyStopping("score/v")
    callback = watch(scorer, "vl", generations_per_prompt=4)
    callback.folder = tmp_path  # of an earlier run
    keepers = [RewardCheckpoint("score/v"), ParetoCheckpoint(["score/v", "score/l"])]
    callbacks = [stopper, *keepers, callback, BeforeAfter({"v": len}, ["a", "b"])]
    trainer = fit(tuned(), callbacks, fast_dev_run=3, max_steps=-1)
    assert [len(samples) for samples in scorer.scored] == [2]
    assert "score/v" in trainer.callback_metrics
    assert stopper.stopped_by is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.lightning
@pytest.mark.parametrize("kind", ["reward", "pareto"])
def test_test_scores_the_best_weights(fit, counter, watch, tmp_path, kind: str) -> None:
    class Tested(counter):
        test_dataloader = counter.val_dataloader

        def test_step(self, batch: object, batch_idx: int) -> None:
            pass

    def callbacks() -> list[pl.Callback]:
        folder = str(tmp_path / "kept")
        keeper = (
            RewardCheckpoint("score/v", dirpath=folder)
            if kind == "reward"
            else ParetoCheckpoint({"score/v": "max", "score/l": "min"}, dirpath=folder)
        )
        return [watch([0.0, 0.25, 0.75, 0.5, 0.25], "vl"), keeper]

    trainer = fit(Tested(), callbacks(), logger=HistoryLogger(str(tmp_path)), max_steps=4)
    logged = {"score/v": 0.75, "score/l": 0.25, "score/fail_rate": 0.0, "score/scored_step": 2.0}
    assert trainer.test(ckpt_path="best", verbose=False) == [logged]
    assert trainer.validate(ckpt_path="best", verbose=False) == [logged]
    assert trainer.validate(trainer.lightning_module, verbose=False) == [logged]  # still the best
    folder = tmp_path / "samples" / "score"
    best = folder / "step=000002.jsonl"
    assert (folder / "test-step=000002.jsonl").read_text() == best.read_text()
    # In another process, a logger of the same folder keeps the rows of training.
    rows = [{"step": 2, "score/v": 0.75, "score/l": 0.25, "score/fail_rate": 0.0, "epoch": 0}]
    before = JsonLog(tmp_path / "metrics.jsonl").read()
    assert [row["step"] for row in before] == [1, 2, 3, 4, 2, 2, 2]
    logger = HistoryLogger(str(tmp_path))
    again = quiet_trainer(callbacks=callbacks(), logger=logger, enable_checkpointing=True)
    kept = trainer.checkpoint_callback.best_model_path
    assert again.test(Tested(), ckpt_path=kept, verbose=False) == [logged]
    assert JsonLog(tmp_path / "metrics.jsonl").read() == before + rows


def test_models_are_released_at_the_end_and_after_a_failure(fit, counter, curve, watch) -> None:
    scorer = curve([0.0])
    fit(counter(), [watch(scorer, "vl")], max_steps=1)
    assert scorer.releases == 1
    failing = curve([])  # no value for any step
    with pytest.raises(IndexError):
        fit(counter(), [watch(failing)], max_steps=1)
    assert failing.releases == 1
    report = BeforeAfter({"v": failing["value"]}, ["a"])
    report.on_exception(quiet_trainer(), counter(), RuntimeError("falls"))
    assert failing.releases == 2


def test_generates_in_the_precision_of_the_run(fit, counter, watch) -> None:
    class Watching(counter):
        def complete(self, prompts: Sequence[str]) -> list[str]:
            autocast.append(torch.is_autocast_enabled("cpu"))
            return super().complete(prompts)

    autocast: list[bool] = []
    for precision in ("32-true", "bf16-mixed"):
        fit(Watching(), [watch([0.0])], max_steps=1, precision=precision)
    assert autocast == [False, True]


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"scores": {}}, "scores"),
        ({"scores": {"v": "value"}}, r"scores\['v'\]"),
        ({"scores": {"fail_rate": len}}, "fail_rate"),
        ({"scores": {"corpus/gm": len}}, "corpus/gm"),
        ({"samples": Samples(texts=[])}, "samples"),
    ],
)
def test_bad_arguments(changes, argument, held_out) -> None:
    with pytest.raises((TypeError, ValueError), match=argument):
        GenerationScorer(**{"scores": {"v": len}, "samples": held_out, **changes})


# Steps


@pytest.mark.lightning
@pytest.mark.parametrize("updates", [1, 3])
def test_every_record_of_a_validation_has_the_number_of_its_optimizer_steps(
    fit, counter, watch, held_out, tmp_path: Path, updates: int
) -> None:
    """Under manual optimisation with several updates per batch, too, and across a resume."""

    class Manual(counter):
        """Has rollouts, one text of each without a reward, but none in its first batch."""

        last_rollout: tuple[Samples, RewardBatch] | None = None

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = updates == 1

        def training_step(self, batch: object, batch_idx: int) -> object:
            self.log("before_update", self.weight.detach())
            for _ in range(0 if updates == 1 else updates):
                self.optimizers().zero_grad()
                self.manual_backward(-self.weight)
                self.optimizers().step()
            if batch_idx > 0:
                total = np.array([float(batch_idx), np.nan, 0.5])
                reasons = {"v": [f"why {i}" for i in range(3)]}
                rewards = RewardBatch(total, {"v": 2 * total}, np.isnan(total), 0.0, reasons)
                self.last_rollout = (held_out, rewards)
            return super().training_step(batch, batch_idx) if updates == 1 else None

    def train(batches: int, ckpt_path: str | None) -> None:
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), save_top_k=-1)
        fit(
            Manual(),
            [watch([0.1 * i for i in range(20)]), keeper, RolloutSamples(every_n_batches=2)],
            logger=[HistoryLogger(str(tmp_path)), CSVLogger(tmp_path, "csv", version=batches)],
            log_every_n_steps=1,
            max_steps=batches * updates,
            val_check_interval=2,
            ckpt_path=ckpt_path,
        )

    fit(Manual(), [RolloutSamples(1)], fast_dev_run=3, max_steps=-1)
    assert not (tmp_path / "samples").exists()
    train(4, None)
    train(6, "last")
    ends = [2 * updates, 4 * updates, 6 * updates]
    rows = JsonLog(tmp_path / "metrics.jsonl").read()
    csv = read_log(tmp_path / "csv" / "version_6").rows
    names = [path.name for path in sorted((tmp_path / "kept").glob("step=*.ckpt"))]
    assert [row["step"] for row in rows if "score/v" in row] == ends
    batches = [2, 4, 6]  # by which Lightning's loggers count; joined with version_4
    assert [step for step, row in csv if "score/v" in row] == batches
    assert [int(name[5:11]) for name in names] == ends
    files = sorted((tmp_path / "samples" / "score").iterdir())
    assert [int(path.stem[5:]) for path in files] == ends
    # The row of a training step has the number that is reached by its updates.
    trained = {row["step"]: row["before_update"] for row in rows if "before_update" in row}
    assert trained == {updates * (i + 1): float(updates * i) for i in range(6)}
    files = sorted((tmp_path / "samples" / "rollout").iterdir())
    assert [int(path.stem[5:]) for path in files] == [3 * updates, 5 * updates]
    samples, scores, _, reasons, _ = read_scored_file(files[1])
    assert samples.texts == held_out.texts
    np.testing.assert_array_equal(scores["total"], [4.0, np.nan, 0.5])
    np.testing.assert_array_equal(scores["v"], [8.0, np.nan, 1.0])
    assert reasons == {"v": ["why 0", "why 1", "why 2"]}
    with pytest.raises(MisconfigurationException, match="Counter"):
        fit(counter(), [RolloutSamples()])
