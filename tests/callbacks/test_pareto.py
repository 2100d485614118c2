from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
from lightning_choice import GenerationScorer, ParetoCheckpoint

from ctrlreward.callbacks import pareto as module_under_test

# Step 4 dominates 1. Steps 2 to 5 are the front after 5 steps; 6 dominates 2 and 5.
A = [0.0, 0.25, 0.625, 0.125, 0.375, 0.75, 0.75]
B = [0.0, 0.5, 0.25, 0.875, 0.5, 0.125, 0.375]
BOTH = {"score/a": "max", "score/b": "max"}


@pytest.fixture
def watch(curve, held_out):
    def build(a=A, b=B, every: int = 1, name: str = "score") -> GenerationScorer:
        scores = {"a": curve(a)["value"], "b": curve(b)["value"]}
        return GenerationScorer(scores, held_out, every, name=name)

    return build


@pytest.fixture
def drawn(monkeypatch) -> list[tuple]:
    """Return the calls of `draw_front`, which draws nothing."""
    calls: list[tuple] = []
    monkeypatch.setattr(module_under_test, "draw_front", lambda *given: calls.append(given))
    return calls


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.lightning
def test_the_folder_holds_the_front_and_nothing_else(fit, tuned, watch, drawn, tmp_path) -> None:
    keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
    fit(tuned(), [keeper, watch()], max_steps=6)
    kept = ["step=000003-a=0.125-b=0.875", "step=000004-a=0.375-b=0.500"]
    kept += ["step=000006-a=0.750-b=0.375"]
    expected = [f"{name}{end}" for name in [*kept, "last"] for end in (".ckpt", "-adapter")]
    assert names(tmp_path / "front") == sorted(expected)
    for step, name in zip((3, 4, 6), kept, strict=True):
        saved = torch.load(tmp_path / "front" / f"{name}.ckpt", weights_only=True)
        assert saved["global_step"] == saved["state_dict"]["weight"] == step
        adapter = tmp_path / "front" / f"{name}-adapter" / "adapter.json"
        assert json.loads(adapter.read_text()) == step
    assert keeper.kept == {3: (0.125, 0.875), 4: (0.375, 0.5), 6: (0.75, 0.375)}
    assert keeper.pruned == {1: (0.25, 0.5), 2: (0.625, 0.25), 5: (0.75, 0.125)}
    path, modes = tmp_path / "front" / "front.png", list(BOTH.values())
    assert drawn == [(list(BOTH), keeper.kept, keeper.pruned, path, modes)]


def test_the_best_first_metric_is_the_best_model(fit, tuned, watch, drawn, tmp_path) -> None:
    """`BeforeAfter` and loggers read these attributes of a checkpoint callback."""
    keeper = ParetoCheckpoint({"score/b": "max", "score/a": "max"}, dirpath=str(tmp_path / "front"))
    fit(tuned(), [keeper, watch()], max_steps=6)
    assert Path(keeper.best_model_path).name == "step=000003-b=0.875-a=0.125.ckpt"
    assert keeper.best_model_score == 0.875
    assert Path(keeper.best_adapter_path).is_dir()
    assert sorted(keeper.best_k_models.values()) == [0.375, 0.5, 0.875]


def test_nan_and_infinity_are_not_kept_and_cause_a_warning(
    fit, counter, watch, drawn, tmp_path
) -> None:
    keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
    scorer = watch([0.0, 0.5, math.nan, 0.5, 0.25], [0.0, 0.25, math.nan, math.inf, 0.5])
    with pytest.warns(UserWarning, match="step 2 .*score/a.*score/b"):
        fit(counter(), [keeper, scorer], max_steps=4)
    assert list(keeper.kept) == [1, 4]
    assert keeper.pruned == {}
    assert torch.load(tmp_path / "front" / "last.ckpt", weights_only=True)["global_step"] == 4


# Resume


def test_a_deleted_file_is_named_and_leaves_the_front(fit, counter, watch, drawn, tmp_path) -> None:
    def run(steps: int, ckpt_path: str | None) -> ParetoCheckpoint:
        keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
        fit(counter(), [keeper, watch()], max_steps=steps, ckpt_path=ckpt_path)
        return keeper

    assert list(run(2, None).kept) == [1, 2]
    gone = tmp_path / "front" / "step=000001-a=0.250-b=0.500.ckpt"
    gone.unlink()
    with pytest.warns(UserWarning, match=gone.name):
        keeper = run(4, "last")
    assert list(keeper.kept) == [2, 3, 4]
    assert keeper.pruned == {}


def test_a_dominated_checkpoint_is_removed_even_if_the_run_resumed_from_it(
    fit, counter, watch, drawn, tmp_path
) -> None:
    def run(steps: int, ckpt_path: str | None) -> None:
        keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"), save_last=False)
        fit(counter(), [keeper, watch()], max_steps=steps, ckpt_path=ckpt_path)

    run(2, None)
    run(6, str(tmp_path / "front" / "step=000002-a=0.625-b=0.250.ckpt"))
    assert [int(name[5:11]) for name in names(tmp_path / "front")] == [3, 4, 6]


def test_another_folder_starts_a_new_front(fit, counter, watch, drawn, tmp_path) -> None:
    first = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "first"))
    fit(counter(), [first, watch()], max_steps=3)
    last = shutil.copy(tmp_path / "first" / "last.ckpt", tmp_path / "taken.ckpt")
    second = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "second"))
    with pytest.warns(UserWarning, match="step=000003-a=0.125-b=0.875.ckpt"):
        fit(counter(), [second, watch()], max_steps=5, ckpt_path=last)
    assert [name[:11] for name in names(tmp_path / "second")] == [
        "last.ckpt",
        "step=000004",
        "step=000005",
    ]
    assert len(names(tmp_path / "first")) == 4  # three on its front, and last.ckpt


# Figure


def test_the_front_is_drawn_when_training_ends(fit, counter, watch, tmp_path) -> None:
    fit(counter(), [ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front")), watch()], max_steps=6)
    assert (tmp_path / "front" / "front.png").read_bytes()[:4] == b"\x89PNG"


def test_training_ends_normally_without_matplotlib(
    fit, counter, watch, tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
    trainer = fit(counter(), [keeper, watch()], max_steps=2)
    assert trainer.global_step == 2
    assert "ctrlreward[plots]" in caplog.text
    assert "front.png" not in names(tmp_path / "front")
