from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from lightning_choice import (
    AdapterExporter,
    GenerationScorer,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)
from warm_python import run_warm

from ctrlreward import Samples

VALUES = [0.0, 0.1, 0.3, 0.2, 0.5, 0.4]


def watch(scorer, held_out, every: int = 1) -> GenerationScorer:
    return GenerationScorer({"v": scorer["value"], "l": scorer["loss"]}, held_out, every)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def exported(folder: Path) -> float:
    return json.loads((folder / "adapter.json").read_text())


@pytest.mark.lightning
def test_keeps_the_best_and_the_last(fit, counter, curve, held_out, tmp_path) -> None:
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
    fit(counter(), [keeper, watch(curve(VALUES), held_out)], max_steps=5)
    assert names(tmp_path / "kept") == ["last.ckpt", "step=000004-v=0.500.ckpt"]
    assert keeper.best_model_path == str(tmp_path / "kept" / "step=000004-v=0.500.ckpt")
    assert keeper.best_model_score == 0.5
    assert keeper.best_adapter_path == ""  # this module has none
    for path, step in ((keeper.best_model_path, 4), (keeper.last_model_path, 5)):
        checkpoint = torch.load(path, weights_only=True)
        assert checkpoint["global_step"] == checkpoint["state_dict"]["weight"] == step


def test_the_default_folder_is_next_to_the_log(fit, counter, curve, held_out, tmp_path) -> None:
    fit(counter(), [RewardCheckpoint("score/v"), watch(curve(VALUES), held_out)], max_steps=1)
    assert names(tmp_path / "checkpoints") == ["last.ckpt", "step=000001-v=0.100.ckpt"]


@pytest.mark.lightning
def test_adapters_are_written_and_removed_with_their_checkpoints(
    fit, tuned, curve, held_out, tmp_path
) -> None:
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), save_top_k=2)
    assert isinstance(tuned(), AdapterExporter)
    fit(tuned(), [keeper, watch(curve(VALUES), held_out)], max_steps=5)
    assert names(tmp_path / "kept") == [
        "last-adapter",
        "last.ckpt",
        "step=000004-v=0.500-adapter",
        "step=000004-v=0.500.ckpt",
        "step=000005-v=0.400-adapter",
        "step=000005-v=0.400.ckpt",
    ]
    assert keeper.best_adapter_path == str(tmp_path / "kept" / "step=000004-v=0.500-adapter")
    assert exported(Path(keeper.best_adapter_path)) == 4
    assert exported(tmp_path / "kept" / "last-adapter") == 5


def test_a_slash_in_a_custom_filename_creates_no_folder(
    fit, counter, curve, held_out, tmp_path
) -> None:
    keeper = RewardCheckpoint(
        "score/v", dirpath=str(tmp_path / "kept"), filename="best-{score/v:.1f}"
    )
    fit(counter(), [keeper, watch(curve(VALUES), held_out)], max_steps=5)
    assert names(tmp_path / "kept") == ["best-0.5.ckpt", "last.ckpt"]


def test_a_failed_export_keeps_the_previous_adapter(fit, tuned, curve, held_out, tmp_path) -> None:
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), save_top_k=0)
    module = tuned()
    module.fails_at = 3
    with pytest.raises(OSError, match="no space left"):
        fit(module, [keeper, watch(curve(VALUES), held_out)])
    assert exported(tmp_path / "kept" / "last-adapter") == 2
    assert torch.load(tmp_path / "kept" / "last.ckpt", weights_only=True)["global_step"] == 2


def test_leftovers_of_a_killed_export_are_replaced(fit, tuned, curve, held_out, tmp_path) -> None:
    for name in (".last-adapter.unfinished", ".last-adapter.replaced"):
        (tmp_path / "kept" / name).mkdir(parents=True)
        (tmp_path / "kept" / name / "half").touch()
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), save_top_k=0)
    fit(tuned(), [keeper, watch(curve(VALUES), held_out)], max_steps=1)
    assert names(tmp_path / "kept") == ["last-adapter", "last.ckpt"]


@pytest.mark.lightning
def test_the_best_checkpoint_is_the_trainers(fit, counter, curve, held_out, tmp_path) -> None:
    class Tested(counter):
        def test_step(self, batch: object, batch_idx: int) -> None:
            tested.append(self.weight.item())

        def test_dataloader(self) -> list[int]:
            return [0]

    tested: list[float] = []
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
    stopper = RewardEarlyStopping("score/v", patience=99)
    # Built without `fit`: the trainer may add a checkpoint callback of its own.
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[keeper, stopper, watch(curve(VALUES), held_out)],
        check_val_every_n_epoch=None,
        default_root_dir=tmp_path,
        logger=False,
        max_steps=6,
        val_check_interval=1,
    )
    module = Tested()
    trainer.fit(module)
    assert trainer.checkpoint_callbacks == [keeper]
    (best,) = (path for path in (tmp_path / "kept").iterdir() if "0.500" in path.name)
    weight = torch.load(best, weights_only=True)["state_dict"]["weight"].item()
    assert weight != module.weight.item()  # training went on after it
    trainer.test(module, ckpt_path="best")
    assert tested == [weight]


KILLED = """
import os, pathlib, signal, sys
from lightning_choice import GenerationScorer, RewardCheckpoint, RewardEarlyStopping, pl
from module_files import load
from ctrlreward import Samples

shared = load(pathlib.Path(sys.argv[1]))


class Killed(shared.Counter):
    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


scorer = shared.Curve([0.0, 0.1, 0.3, 0.2, 0.5, 0.4])
pl.Trainer(
    accelerator="cpu", logger=False, max_steps=20, val_check_interval=1,
    check_val_every_n_epoch=None, enable_progress_bar=False, default_root_dir=sys.argv[2],
    callbacks=[
        GenerationScorer({"v": scorer["value"]}, Samples(texts=["The food"])),
        RewardEarlyStopping("score/v", patience=4),
        RewardCheckpoint("score/v", dirpath=sys.argv[2] + "/kept"),
    ],
).fit(Killed())
"""


def test_resumes_from_the_last_validation_after_sigkill(fit, counter, curve, tmp_path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    shared = Path(__file__).with_name("conftest.py")
    ended = run_warm(script, shared, tmp_path, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert names(tmp_path / "kept") == ["last.ckpt", "step=000004-v=0.500.ckpt"]

    scorer, module = curve(VALUES), counter()
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
    stopper = RewardEarlyStopping("score/v", patience=4)
    callbacks = [keeper, stopper, watch(scorer, Samples(texts=["The food"]))]
    fit(module, callbacks, max_steps=20, ckpt_path="last")
    assert len(module.draws) == 2  # steps 7 and 8 of 8: six were done
    assert (stopper.stopped_step, stopper.stopped_by) == (8, "patience_exhausted")
    assert Path(keeper.best_model_path).name == "step=000004-v=0.500.ckpt"


@pytest.mark.lightning
def test_callbacks_of_lightning_find_their_metric_when_a_run_resumes(
    fit, counter, curve, held_out, tmp_path
) -> None:
    def run(epochs: int, **resumed: str) -> tuple[RewardCheckpoint, pl.Trainer]:
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
        stopper = pl.callbacks.EarlyStopping("score/v", mode="max", patience=9)
        often = {"check_val_every_n_epoch": 1, "val_check_interval": 1.0, "max_steps": -1}
        callbacks = [watch(curve(VALUES * 9), held_out), stopper, keeper]
        return keeper, fit(counter(), callbacks, max_epochs=epochs, **often, **resumed)

    whole, _ = run(3)
    shutil.rmtree(tmp_path / "kept")
    run(1)
    keeper, trainer = run(3, ckpt_path="last")  # as an epoch ends, before it is validated again
    assert (keeper.state, keeper.best_model_path) == (whole.state, whole.best_model_path)
    assert trainer.current_epoch == 3


@pytest.mark.lightning
@pytest.mark.parametrize("fate", ["stays", "moved", "lost"])
def test_a_run_resumed_in_another_folder_names_what_is_on_disk(
    fit, counter, watch, tmp_path: Path, fate: str
) -> None:
    """The best file of the interrupted run still competes, unless it is gone."""
    values = [0.0, 0.9, 0.5, 0.7, 0.3]
    first = RewardCheckpoint("score/v", dirpath=str(tmp_path / "first"), save_top_k=2)
    fit(counter(), [first, watch(values)], max_steps=2)
    place = tmp_path / "first"
    if fate == "moved":
        place = place.rename(tmp_path / "moved")
    elif fate == "lost":
        Path(first.best_model_path).unlink()
    second = RewardCheckpoint("score/v", dirpath=str(tmp_path / "second"), save_top_k=2)
    last = place / "last.ckpt"
    fit(counter(), [second, watch(values)], max_steps=4, ckpt_path=str(last))
    assert Path(second.best_model_path).is_file()
    loaded = torch.load(second.best_model_path, weights_only=True)
    assert loaded["global_step"] == second.selected_step == (3 if fate == "lost" else 1)
    assert set(second.state.kept) == ({2, 3} if fate == "lost" else {1, 3})
    assert all(Path(path).is_file() for path in second.best_k_models)
    assert "step=000002-v=0.500.ckpt" in names(place)  # never removed by another run
