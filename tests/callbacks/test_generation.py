from __future__ import annotations

import json
import os
from collections.abc import Sequence

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
    pl,
    quiet_trainer,
)

from ctrlreward import Samples
from ctrlreward.files import JsonLog

# Logging


@pytest.mark.lightning
def test_logs_means_over_valid_samples(fit, counter, curve, watch) -> None:
    scorer = curve([0.0, 0.25])
    score = scorer.score_samples

    def failing_first(samples: Samples) -> dict[str, np.ndarray]:
        values = score(samples)
        values["value"][0] = np.nan
        values["loss"][1] = 0.0
        return values

    scorer.score_samples = failing_first
    trainer = fit(counter(), [watch(scorer, "vl")], max_steps=1)
    assert trainer.callback_metrics["score/v"] == pytest.approx(0.25)
    assert trainer.callback_metrics["score/l"] == pytest.approx((0.75 + 0.0 + 0.75) / 3)
    assert trainer.callback_metrics["score/fail_rate"] == pytest.approx(1 / 3)


def test_an_infinite_score_is_a_failed_sample(fit, counter, held_out, tmp_path) -> None:
    """A function of the texts, to which a callback gives what a reward does."""

    def spread(texts: list[str]) -> list[float]:
        return [float("inf"), 0.5, 0.25]

    callback = GenerationScorer({"spread": spread}, held_out)
    trainer = fit(counter(), [callback], max_steps=1)
    assert trainer.callback_metrics["score/spread"] == pytest.approx(0.375)
    assert trainer.callback_metrics["score/fail_rate"] == pytest.approx(1 / 3)
    (file,) = (tmp_path / "samples" / "score").iterdir()
    scores = [json.loads(line)["scores"] for line in file.read_text().splitlines()]
    assert scores == [{"spread": None}, {"spread": 0.5}, {"spread": 0.25}]


def test_without_a_valid_score_the_mean_is_nan(fit, counter, watch) -> None:
    trainer = fit(counter(), [watch([float("nan")])], max_steps=1)
    assert torch.isnan(trainer.callback_metrics["score/v"])
    assert trainer.callback_metrics["score/fail_rate"] == 1.0


def test_a_scorer_is_called_once_and_equal_scorers_stay_separate(
    fit, counter, curve, held_out
) -> None:
    one, other = curve([0.0, 0.25]), curve([0.0, 0.5])
    scores = {"v": one["value"], "l": one["loss"], "other": other["value"]}
    trainer = fit(counter(), [GenerationScorer(scores, held_out)], max_steps=1)
    assert (len(one.scored), len(other.scored)) == (1, 1)
    assert trainer.callback_metrics["score/v"] == 0.25
    assert trainer.callback_metrics["score/other"] == 0.5


def test_scorers_get_texts_and_columns(fit, counter, curve, watch, held_out) -> None:
    scorer, module = curve([0.0]), counter()
    fit(module, [watch(scorer, generations_per_prompt=2)], max_steps=1)
    (scored,) = scorer.scored
    assert len(scored) == 6
    assert scored.labels == ("positive",) * 4 + ("negative",) * 2
    assert all(text.startswith("The food at 1 ") for text in scored.texts[:2])
    prompts = [p for p in held_out.prompts for _ in range(2)]
    assert module.calls == [{"prompts": prompts, "training": False, "gradients": False}]


def test_two_callbacks_log_under_their_names(fit, counter, watch, tmp_path) -> None:
    callbacks = [watch([0.0, 0.25]), watch([0.0, 0.5], name="other")]
    trainer = fit(counter(), callbacks, max_steps=1)
    assert trainer.callback_metrics["score/v"] == 0.25
    assert trainer.callback_metrics["other/v"] == 0.5
    for name in ("score", "other"):
        assert (tmp_path / "samples" / name / "step=000001.jsonl").exists()


def test_samples_on_disk_can_be_read_back(fit, counter, curve, watch, tmp_path) -> None:
    scorer = curve([0.0, 0.25, float("nan")])
    callback = watch(scorer, "vl")
    logger = CSVLogger(tmp_path, name="run", version=0)
    fit(counter(), [callback], max_steps=2, logger=logger, log_every_n_steps=1)
    folder = tmp_path / "run" / "version_0" / "samples" / "score"
    assert callback.folder == folder
    assert sorted(p.name for p in folder.iterdir()) == ["step=000001.jsonl", "step=000002.jsonl"]
    assert Samples.from_jsonl(folder / "step=000001.jsonl") == scorer.scored[0]
    records = [json.loads(line) for line in (folder / "step=000001.jsonl").open()]
    assert [record["scores"] for record in records] == [{"v": 0.25, "l": 0.75}] * 3
    failed = json.loads((folder / "step=000002.jsonl").open().readline())
    assert failed["scores"] == {"v": None, "l": None}


def test_what_an_earlier_start_left_unfinished_is_removed(
    fit, counter, curve, watch, tmp_path
) -> None:
    """One that was killed before its first checkpoint, by a logger with a folder for each start."""
    folder = tmp_path / "run" / "version_0" / "samples" / "score"
    folder.mkdir(parents=True)
    old, new = (folder / f".step=00000{i}.jsonl.unfinished" for i in (1, 2))
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    fit(counter(), [watch(curve([0.0]), "v")], max_steps=1, logger=CSVLogger(tmp_path, name="run"))
    assert [path.name for path in folder.iterdir()] == [new.name]  # another run may be writing it


# Schedule and side effects


def test_every_nth_validation(fit, counter, curve, watch) -> None:
    scorer = curve([0.0])
    callback = watch(scorer, every_n_validations=3)
    fit(counter(), [callback], max_steps=8)
    assert [s.texts[0].split()[3] for s in scorer.scored] == ["3", "6"]
    assert (callback.validations, callback.last_scored_step) == (8, 6)
    assert not callback.has_new_scores


@pytest.mark.lightning
def test_sanity_check_is_skipped(fit, counter, curve, watch) -> None:
    scorer = curve([0.0])
    callback = watch(scorer)
    fit(counter(), [callback], max_steps=2, num_sanity_val_steps=1)
    assert len(scorer.scored) == 2
    assert callback.validations == 2


def test_fast_dev_run_scores_two_samples_and_writes_nothing(
    fit, counter, curve, watch, tmp_path
) -> None:
    scorer = curve([0.25])
    callback = watch(scorer, every_n_validations=5, generations_per_prompt=4)
    callback.folder = tmp_path  # of an earlier run
    trainer = fit(counter(), [callback], fast_dev_run=True, max_steps=-1)
    assert [len(samples) for samples in scorer.scored] == [2]
    assert trainer.callback_metrics["score/v"] == 0.25
    assert list(tmp_path.iterdir()) == []


@pytest.mark.lightning
def test_validate_scores_without_counting(counter, watch, tmp_path) -> None:
    callback = watch([0.25], every_n_validations=5)
    trainer = quiet_trainer(callbacks=[callback], default_root_dir=tmp_path)
    (logged,) = trainer.validate(counter(), verbose=False)
    assert logged["score/v"] == 0.25
    assert (callback.validations, callback.last_scored_step) == (0, -1)


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

    options = {"logger": HistoryLogger(str(tmp_path)), "max_steps": 4}
    trainer = fit(Tested(), callbacks(), **options)
    logged = {"score/v": 0.75, "score/l": 0.25, "score/fail_rate": 0.0, "step": 2.0}
    assert trainer.test(ckpt_path="best", verbose=False) == [logged]
    assert trainer.validate(ckpt_path="best", verbose=False) == [logged]
    folder = tmp_path / "samples" / "score"
    best = folder / "step=000002.jsonl"
    assert (folder / "test-step=000002.jsonl").read_text() == best.read_text()
    # In another process, a logger of the same folder keeps the rows of training.
    rows = [{"step": 2, "score/v": 0.75, "score/l": 0.25, "score/fail_rate": 0.0}]
    before = JsonLog(tmp_path / "metrics.jsonl").read()
    assert [row["step"] for row in before] == [1, 2, 3, 4, 2, 2]
    logger = HistoryLogger(str(tmp_path))
    again = quiet_trainer(callbacks=callbacks(), logger=logger, enable_checkpointing=True)
    kept = trainer.checkpoint_callback.best_model_path
    assert again.test(Tested(), ckpt_path=kept, verbose=False) == [logged]
    assert JsonLog(tmp_path / "metrics.jsonl").read() == before + rows


def test_each_validation_generates_with_the_same_seed(fit, counter, curve, watch) -> None:
    scorer = curve([0.0])
    fit(counter(), [watch(scorer, seed=4)], max_steps=3)
    noise = [[text.split()[-1] for text in samples.texts] for samples in scorer.scored]
    assert noise[0] == noise[1] == noise[2]
    assert len(set(noise[0])) == 3


@pytest.mark.lightning
def test_counters_survive_a_resume(fit, counter, curve, watch, tmp_path) -> None:
    scorer = curve([0.0])
    trainer = fit(counter(), [watch(scorer, every_n_validations=3)], max_steps=4)
    trainer.save_checkpoint(tmp_path / "at4.ckpt")
    resumed = watch(scorer, every_n_validations=3)
    fit(counter(), [resumed], max_steps=8, ckpt_path=tmp_path / "at4.ckpt")
    assert [s.texts[0].split()[3] for s in scorer.scored] == ["3", "6"]
    assert (resumed.validations, resumed.last_scored_step) == (8, 6)


@pytest.mark.lightning
def test_models_are_released_at_the_end_and_after_a_failure(fit, counter, curve, watch) -> None:
    scorer = curve([0.0])
    fit(counter(), [watch(scorer, "vl")], max_steps=1)
    assert scorer.releases == 1
    failing = curve([])  # no value for any step
    with pytest.raises(IndexError):
        fit(counter(), [watch(failing)], max_steps=1)
    assert failing.releases == 1
    scorer = curve([])
    report = BeforeAfter({"v": scorer["value"]}, ["a"])
    report.on_exception(quiet_trainer(), counter(), RuntimeError("falls"))
    assert scorer.releases == 1
    report.teardown(quiet_trainer(), counter(), "fit")
    assert scorer.releases == 2


# Errors


def test_a_run_without_validation_is_rejected(fit, counter, watch) -> None:
    with pytest.raises(MisconfigurationException, match="validation"):
        fit(counter(), [watch([0.0])], limit_val_batches=0)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"scores": {}}, "scores"),
        ({"scores": {"v": "value"}}, r"scores\['v'\]"),
        ({"scores": {"fail_rate": len}}, "fail_rate"),
        ({"scores": {"corpus/gm": len}}, "corpus/gm"),
        ({"samples": Samples(texts=[])}, "samples"),
        ({"every_n_validations": 0}, "every_n_validations"),
        ({"generations_per_prompt": 0}, "generations_per_prompt"),
        ({"table_rows": 0}, "table_rows"),
    ],
)
def test_bad_arguments(changes, argument, held_out) -> None:
    with pytest.raises((TypeError, ValueError), match=argument):
        GenerationScorer(**{"scores": {"v": len}, "samples": held_out, **changes})


def test_generates_in_the_precision_of_the_run(fit, counter, watch) -> None:
    class Watching(counter):
        def complete(self, prompts: Sequence[str]) -> list[str]:
            autocast.append(torch.is_autocast_enabled("cpu"))
            return super().complete(prompts)

    autocast: list[bool] = []
    callback = watch([0.0])
    for precision in ("32-true", "bf16-mixed"):
        fit(Watching(), [callback], max_steps=1, precision=precision)
    assert autocast == [False, True]
