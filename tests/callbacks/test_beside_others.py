"""Beside the callbacks of Lightning: what these do is the same with and without ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_module import Counting
from lightning_choice import (
    GenerationScorer,
    ModelCheckpoint,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
    quiet_trainer,
)
from thinned import thinned

from ctrlreward import Samples

pytestmark = [
    pytest.mark.lightning,
    pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:The number of training"),
]

LOSSES = [0.9, 0.5, 0.6, 0.7, 0.8, 0.65]
QUALITY = [0.1, 0.2, 0.3, 0.2, 0.1, 0.0]  # best at the third validation


class Writer(Counting):
    """Its loss at validation is scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.scored: list[float] = []

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", LOSSES[self.trainer.global_step - 1])

    def complete(self, prompts: list[str]) -> list[str]:
        self.scored.append(self.weight.item())
        return ["a" for _ in prompts]

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


def ours(folder: Path, steps: list[int]) -> list[Any]:
    def quality(completions: list[str]) -> list[float]:
        steps.append(len(steps))
        return [QUALITY[len(steps) - 1]] * len(completions)

    prompts = Samples(["one", "two"])
    return [
        GenerationScorer({"a": quality}, prompts),
        ProxyGuard("val_loss", "score/a", "min", "max"),
        RewardEarlyStopping("score/a", "max", patience=9),
        RewardCheckpoint("score/a", "max", dirpath=folder / "ours"),
        ParetoCheckpoint({"score/a": "max", "val_loss": "min"}, dirpath=folder / "front"),
    ]


def run(
    folder: Path, theirs: Callable[[Path], list[Any]], place: str, **limits: int
) -> tuple[Any, list[Any], Any]:
    module, others = Writer(), theirs(folder)
    added = [] if place == "without" else ours(folder, [])
    callbacks = [*added, *others] if place == "before" else [*others, *added]
    trainer = quiet_trainer(
        max_epochs=6,
        **limits,
        callbacks=callbacks,
        enable_checkpointing=True,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
    one = torch.utils.data.DataLoader([0])
    trainer.fit(module, one, one)
    return trainer, others, module


def stopping(folder: Path) -> list[Any]:
    return [pl.callbacks.EarlyStopping("val_loss", patience=2)]


def checkpoint(folder: Path) -> list[Any]:
    name = "{step}-{val_loss:.2f}"
    return [ModelCheckpoint(folder / "theirs", name, monitor="val_loss", save_top_k=2)]


def last(folder: Path) -> list[Any]:
    return [ModelCheckpoint(folder / "theirs", "{step}")]


def averaged(folder: Path) -> list[Any]:
    return [pl.callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=3)]


THEIRS = {"stopping": stopping, "best": checkpoint, "last": last, "average": averaged}


def facts(trainer: Any, others: list[Any], module: Any, folder: Path) -> dict[str, Any]:
    """Return the results of the run and the states of Lightning's callbacks."""
    metrics = {k: v.item() for k, v in trainer.callback_metrics.items() if k == "val_loss"}
    found: dict[str, Any] = {
        "steps": trainer.global_step,
        "rates": module.rates,
        "weight": module.weight.item(),
        "metrics": metrics,
        "files": sorted(path.name for path in (folder / "theirs").glob("*")),
    }
    for each in others:
        state = {k: str(v).replace(str(folder), "") for k, v in each.state_dict().items()}
        found[type(each).__name__] = state
    return found


@pytest.mark.parametrize(("name", "place"), thinned(THEIRS, ("before", "after")))
def test_callbacks_of_lightning_do_the_same(name: str, place: str, tmp_path: Path) -> None:
    expected, found = (
        facts(*run(folder, THEIRS[name], kind), folder)
        for folder, kind in ((tmp_path / "plain", "without"), (tmp_path / "with", place))
    )
    assert found == expected
    # Worked out by hand: val_loss is best at step 2, and then does not improve.
    assert expected["steps"] == {"stopping": 4}.get(name, 6)
    if name == "best":
        assert expected["files"] == ["step=2-val_loss=0.50.ckpt", "step=3-val_loss=0.60.ckpt"]
    if name == "stopping":
        assert expected["rates"] == [1, 1, 1, 0.5]
    assert sorted(path.name for path in (tmp_path / "with" / "ours").glob("step=*")) == [
        "step=000003-a=0.300.ckpt"
    ]


@pytest.mark.parametrize(
    ("limits", "stopped"),
    [({}, 3), ({"min_epochs": 5}, 5), ({"min_steps": 4}, 4), ({"min_epochs": 2}, 3)],
)
def test_our_stop_waits_for_the_minimum_of_the_trainer(limits, stopped, tmp_path: Path) -> None:
    # val_loss is best at step 2; the first one after it that may stop does.
    stop = RewardEarlyStopping("val_loss", "min", patience=1)
    trainer, _, _ = run(tmp_path, lambda folder: [stop], "without", **limits)
    assert (trainer.global_step, stop.stopped_step) == (stopped, stopped)
    assert stop.stopped_by == "patience_exhausted"


averaging = getattr(pl.callbacks, "EMAWeightAveraging", None)


@pytest.mark.skipif(averaging is None, reason="Lightning before 2.6 has no EMAWeightAveraging")
def test_averaged_weights_are_scored_and_saved(tmp_path: Path) -> None:
    assert averaging is not None
    trainer, _, module = run(tmp_path, lambda folder: [averaging(decay=0.5)], "before")
    best = next(each for each in trainer.callbacks if isinstance(each, RewardCheckpoint))
    saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]["weight"].item()
    assert saved == module.scored[2] != 3.0
    with pytest.raises(Exception, match="List this GenerationScorer before"):
        run(tmp_path / "other", lambda folder: [averaging(decay=0.5)], "after")
