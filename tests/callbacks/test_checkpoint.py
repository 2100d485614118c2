"""Checkpoints that are kept: files, adapters, resume, and the Pareto front."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import left_by_killed
from lightning_choice import (
    AdapterExporter,
    MisconfigurationException,
    ParetoCheckpoint,
    RewardCheckpoint,
    pl,
)

VALUES = [0.0, 0.1, 0.3, 0.2, 0.5, 0.4]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def exported(folder: Path | str) -> float:
    return json.loads((Path(folder) / "adapter.json").read_text())


def test_default_folder_and_a_file_name_of_the_users(fit, counter, watch, tmp_path) -> None:
    """Next to the log."""
    keeper = RewardCheckpoint("score/v", filename="best-step={step}", verbose=True)
    fit(counter(), [keeper, watch(VALUES)], max_steps=5)
    assert names(tmp_path / "checkpoints") == ["best-step=4.ckpt", "last.ckpt"]
    assert keeper.best_adapter_path == ""  # this module has none


@pytest.mark.lightning
def test_adapters_are_written_and_removed_with_their_checkpoints(fit, tuned, watch, kept) -> None:
    for what in ("unfinished", "replaced"):
        left = left_by_killed(kept / "last-adapter", what)
        left.mkdir(parents=True)
        (left / "half").touch()
    keeper = RewardCheckpoint("score/v", dirpath=str(kept), save_top_k=2)
    assert isinstance(tuned(), AdapterExporter)
    fit(tuned(), [keeper, watch(VALUES)], max_steps=5)
    files = ("last", "step=000004-v=0.500", "step=000005-v=0.400")
    assert names(kept) == [f"{name}{end}" for name in files for end in ("-adapter", ".ckpt")]
    best = str(kept / "step=000004-v=0.500")
    assert (keeper.best_model_path, keeper.best_adapter_path) == (f"{best}.ckpt", f"{best}-adapter")
    assert keeper.best_model_score == 0.5
    for path, step in ((keeper.best_model_path, 4), (keeper.last_model_path, 5)):
        saved = torch.load(path, weights_only=True)
        assert saved["global_step"] == saved["state_dict"]["weight"] == step
        assert exported(path.replace(".ckpt", "-adapter")) == step
    module, last = tuned(), kept.with_name("failed") / "last.ckpt"
    module.fails_at = 3  # the previous adapter stays
    keeper = RewardCheckpoint("score/v", dirpath=str(last.parent), save_top_k=0)
    with pytest.raises(OSError, match="no space left"):
        fit(module, [keeper, watch(VALUES)])
    assert exported(last.with_name("last-adapter")) == 2
    assert torch.load(last, weights_only=True)["global_step"] == 2


@pytest.mark.lightning
def test_callbacks_of_lightning_find_their_metric_when_a_run_resumes(
    fit, counter, watch, kept
) -> None:
    def run(epochs: int, **resumed: str) -> tuple[RewardCheckpoint, pl.Trainer]:
        keeper = RewardCheckpoint("score/v", dirpath=str(kept))
        stopper = pl.callbacks.EarlyStopping("score/v", mode="max", patience=9)
        often = {"check_val_every_n_epoch": 1, "val_check_interval": 1.0, "max_steps": -1}
        callbacks = [watch(VALUES * 9), stopper, keeper]
        return keeper, fit(counter(), callbacks, max_epochs=epochs, **often, **resumed)

    whole, _ = run(3)
    shutil.rmtree(kept)
    run(1)
    keeper, trainer = run(3, ckpt_path="last")  # as an epoch ends, before it is validated again
    assert (keeper.state, keeper.best_model_path) == (whole.state, whole.best_model_path)
    assert trainer.current_epoch == 3


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
    fit(counter(), [second, watch(values)], max_steps=4, ckpt_path=str(place / "last.ckpt"))
    loaded = torch.load(second.best_model_path, weights_only=True)
    assert loaded["global_step"] == second.selected_step == (3 if fate == "lost" else 1)
    assert set(second.state.kept) == ({2, 3} if fate == "lost" else {1, 3})
    assert all(Path(path).is_file() for path in second.best_k_models)
    assert "step=000002-v=0.500.ckpt" in names(place)  # never removed by another run


def test_a_checkpoint_of_adapters_alone(fit, counter, watch, tmp_path: Path) -> None:
    class Adapted(counter):
        """Module with a frozen model, a buffer, and an adapter that is trained."""

        def __init__(self) -> None:
            super().__init__()
            self.base = torch.nn.Linear(500, 500).requires_grad_(False)
            self.register_buffer("seen", torch.ones(()))

    def run(steps: int, **resumed: Any) -> tuple[Adapted, RewardCheckpoint]:
        module = Adapted()
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path), trainable_only=True)
        fit(module, [watch([0.0, 0.9, 0.8, 0.7, 0.3]), keeper], max_steps=steps, **resumed)
        return module, keeper

    _, keeper = run(2)
    saved = torch.load(keeper.best_model_path, weights_only=True)["state_dict"]
    assert saved.keys() == {"weight", "seen"}
    module, _ = run(4, ckpt_path="last")
    assert module.weight.item() == 4
    assert Adapted.load_from_checkpoint(keeper.best_model_path, strict=False).weight.item() == 1
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del content["state_dict"]["weight"]
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(MisconfigurationException, match="weight"):
        run(6, ckpt_path=str(tmp_path / "other.ckpt"))


# The Pareto front. Step 4 dominates 1; 2 to 5 are the front after five steps; 6 dominates 2 and 5.

A = [0.0, 0.25, 0.625, 0.125, 0.375, 0.75, 0.75]
B = [0.0, 0.5, 0.25, 0.875, 0.5, 0.125, 0.375]
BOTH = {"score/a": "max", "score/b": "max"}


@pytest.fixture
def ab(curve, watch):
    """Function that builds a `GenerationScorer` of two curves."""

    def build(a: list[float] = A, b: list[float] = B) -> Any:
        return watch({"a": curve(a)["value"], "b": curve(b)["value"]})

    return build


@pytest.mark.lightning
def test_the_folder_holds_the_front_and_nothing_else(fit, tuned, ab, kept) -> None:
    keeper = ParetoCheckpoint(BOTH, dirpath=str(kept))
    fit(tuned(), [keeper, ab()], max_steps=6)
    front = ["step=000003-a=0.125-b=0.875", "step=000004-a=0.375-b=0.500"]
    front += ["step=000006-a=0.750-b=0.375"]
    expected = [f"{name}{end}" for name in [*front, "last"] for end in (".ckpt", "-adapter")]
    assert names(kept) == sorted(expected)
    for step, name in zip((3, 4, 6), front, strict=True):
        saved = torch.load(kept / f"{name}.ckpt", weights_only=True)
        assert saved["global_step"] == saved["state_dict"]["weight"] == step
        assert exported(kept / f"{name}-adapter") == step
    assert keeper.kept == {3: (0.125, 0.875), 4: (0.375, 0.5), 6: (0.75, 0.375)}
    assert keeper.pruned == {1: (0.25, 0.5), 2: (0.625, 0.25), 5: (0.75, 0.125)}
    # `BeforeAfter` and loggers read these attributes: the best of the first metric.
    assert Path(keeper.best_model_path).name == f"{front[2]}.ckpt"
    assert keeper.best_model_score == 0.75
    assert Path(keeper.best_adapter_path).is_dir()
    assert sorted(keeper.best_k_models.values()) == [0.125, 0.375, 0.75]


def test_nan_and_infinity_are_not_kept_and_cause_a_warning(fit, counter, ab, kept) -> None:
    keeper = ParetoCheckpoint(BOTH, dirpath=str(kept))
    scorer = ab([0.0, 0.5, math.nan, 0.5, 0.25], [0.0, 0.25, math.nan, math.inf, 0.5])
    with pytest.warns(UserWarning, match="step 2 .*score/a.*score/b"):
        fit(counter(), [keeper, scorer], max_steps=4)
    assert (list(keeper.kept), keeper.pruned) == ([1, 4], {})
    assert torch.load(kept / "last.ckpt", weights_only=True)["global_step"] == 4


@pytest.mark.parametrize("folder", ["kept", "other"])
def test_a_front_has_the_files_of_its_folder(fit, counter, ab, kept, folder: str) -> None:
    """A deleted file is named and leaves the front; another folder starts a new one."""

    def run(steps: int, folder: Path, ckpt_path: str | None) -> ParetoCheckpoint:
        keeper = ParetoCheckpoint(BOTH, dirpath=str(folder))
        fit(counter(), [keeper, ab()], max_steps=steps, ckpt_path=ckpt_path)
        return keeper

    assert list(run(2, kept, None).kept) == [1, 2]
    last = shutil.copy(kept / "last.ckpt", kept.with_name("taken.ckpt"))
    gone = "step=000001-a=0.250-b=0.500.ckpt"
    (kept / gone).unlink()
    with pytest.warns(UserWarning, match=gone):
        keeper = run(4, kept.with_name(folder), last)
    assert list(keeper.kept) == ([2, 3, 4] if folder == "kept" else [3, 4])
    assert keeper.pruned == {}
    files = [int(name[5:11]) for name in names(kept.with_name(folder)) if name.startswith("step")]
    assert files == list(keeper.kept)


def test_a_dominated_checkpoint_is_removed_even_if_the_run_resumed_from_it(
    fit, counter, ab, kept
) -> None:
    def run(steps: int, ckpt_path: str | None) -> None:
        keeper = ParetoCheckpoint(BOTH, dirpath=str(kept), save_last=False)
        fit(counter(), [keeper, ab()], max_steps=steps, ckpt_path=ckpt_path)

    run(2, None)
    run(6, str(kept / "step=000002-a=0.625-b=0.250.ckpt"))
    assert [int(name[5:11]) for name in names(kept)] == [3, 4, 6]
