from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    ParetoCheckpoint,
)

from ctrlreward import Samples
from ctrlreward.callbacks import pareto as module_under_test
from ctrlreward.plots.curves import draw_front

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


def test_before_and_after_works_with_a_front(
    fit, counter, curve, watch, drawn, held_out, tmp_path
) -> None:
    keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
    report = BeforeAfter({"a": curve(A)["value"]}, Samples(texts=["A lake", "A house"]))
    fit(counter(), [keeper, watch(), report], max_steps=6)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best_checkpoint"].endswith("step=000006-a=0.750-b=0.375.ckpt")
    assert summary["after"]["a"] == 0.75


def test_nan_and_infinity_are_not_kept_and_cause_a_warning(
    fit, counter, watch, drawn, tmp_path
) -> None:
    keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
    scorer = watch([0.0, 0.5, math.nan, 0.5, 0.25], [0.0, 0.25, math.nan, math.inf, 0.5])
    with pytest.warns(UserWarning, match="is not kept") as caught:
        fit(counter(), [keeper, scorer], max_steps=4)
    messages = [str(w.message) for w in caught if "is not kept" in str(w.message)]
    assert messages == [
        "the checkpoint of step 2 is not kept: score/a is nan, score/b is nan",
        "the checkpoint of step 3 is not kept: score/b is nan",
    ]
    assert list(keeper.kept) == [1, 4]
    assert keeper.pruned == {}
    assert torch.load(tmp_path / "front" / "last.ckpt", weights_only=True)["global_step"] == 4


def test_only_if_all_metrics_are_fresh(fit, counter, watch, drawn, tmp_path) -> None:
    """One is scored at 2, 4, 6 and 8, the other at 3 and 6: both at 6 only."""
    keeper = ParetoCheckpoint({"x/a": "max", "y/b": "max"}, dirpath=str(tmp_path / "front"))
    fit(counter(), [keeper, watch(every=2, name="x"), watch(every=3, name="y")])
    assert keeper.kept == {6: (0.75, 0.375)}
    assert names(tmp_path / "front") == ["last.ckpt", "step=000006-a=0.750-b=0.375.ckpt"]


# Resume


def test_a_deleted_file_is_named_and_leaves_the_front(fit, counter, watch, drawn, tmp_path) -> None:
    def run(steps: int, ckpt_path: str | None) -> ParetoCheckpoint:
        keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
        fit(counter(), [keeper, watch()], max_steps=steps, ckpt_path=ckpt_path)
        return keeper

    assert list(run(2, None).kept) == [1, 2]
    gone = tmp_path / "front" / "step=000001-a=0.250-b=0.500.ckpt"
    gone.unlink()
    with pytest.warns(UserWarning, match="no longer exists") as caught:
        keeper = run(4, "last")
    (message,) = [str(w.message) for w in caught if "no longer exists" in str(w.message)]
    assert message == f"{gone} no longer exists and leaves the Pareto front"
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
    with pytest.warns(
        UserWarning, match=r"second/step=000003-a=0\.125-b=0\.875\.ckpt no longer exists"
    ):
        fit(counter(), [second, watch()], max_steps=5, ckpt_path=last)
    assert [name[:11] for name in names(tmp_path / "second")] == [
        "last.ckpt",
        "step=000004",
        "step=000005",
    ]
    assert len(names(tmp_path / "first")) == 4  # three on its front, and last.ckpt


# Figure


def png_size(path: Path) -> tuple[int, int]:
    start = path.read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", start[16:24])


def test_the_front_is_drawn_when_training_ends(fit, counter, watch, tmp_path, monkeypatch) -> None:
    from matplotlib.axes import Axes

    lines: list[tuple[list[float], list[float]]] = []
    clouds: list[tuple[list[float], list[float]]] = []
    plot, scatter = Axes.plot, Axes.scatter

    def spy_plot(self, x, y, **options):
        lines.append((list(x), list(y)))
        return plot(self, x, y, **options)

    def spy_scatter(self, x, y, **options):
        clouds.append((list(x), list(y)))
        return scatter(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", spy_plot)
    monkeypatch.setattr(Axes, "scatter", spy_scatter)
    fit(counter(), [ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front")), watch()], max_steps=6)
    assert lines == [([0.125, 0.375, 0.75], [0.875, 0.5, 0.375])]  # sorted by the first metric
    assert clouds == [([0.25, 0.625, 0.75], [0.5, 0.25, 0.125])]
    assert png_size(tmp_path / "front" / "front.png") == (546, 468)


def test_one_panel_per_pair_of_metrics(tmp_path: Path) -> None:
    kept = {3: (0.1, 0.2, 0.3), 5: (0.3, 0.2, 0.1)}
    draw_front(["x", "y", "z"], kept, {}, tmp_path / "front.png")
    assert png_size(tmp_path / "front.png") == (3 * 546, 468)


def test_training_ends_normally_without_matplotlib(
    fit, counter, watch, tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    keeper = ParetoCheckpoint(BOTH, dirpath=str(tmp_path / "front"))
    trainer = fit(counter(), [keeper, watch()], max_steps=2)
    assert trainer.global_step == 2
    assert "pip install 'ctrlreward[plots]'" in caplog.text
    assert "front.png" not in names(tmp_path / "front")
