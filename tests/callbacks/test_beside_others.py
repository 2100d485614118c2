"""Beside the callbacks of Lightning: what these do is the same with and without ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from counting_module import Counting
from lightning_choice import (
    HistoryLogger,
    ModelCheckpoint,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)

from ctrlreward.files import JsonLog

pytestmark = [
    pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:The number of training"),
]

LOSSES = [0.9, 0.5, 0.6, 0.7, 0.8, 0.65]
QUALITY = [0.0, 0.1, 0.2, 0.3, 0.2, 0.1, 0.0]  # by step, best at 3


class Writer(Counting):
    """Its loss at validation is scripted."""

    batches = 1

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
        return [f" at {self.trainer.global_step}" for _ in prompts]

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        scheduler = {"scheduler": plateau, "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


@pytest.fixture
def run(fit, watch):
    """Function that trains for six epochs with others' callbacks, and ours before or after."""

    def train(folder: Path, others: list[Any], place: str, **limits: int) -> tuple[Any, Any]:
        ours = [
            watch(QUALITY),
            ProxyGuard("val_loss", {"score/v": "max"}, "min"),
            RewardEarlyStopping("score/v", "max", patience=9),
            RewardCheckpoint("score/v", "max", dirpath=folder / "ours"),
            ParetoCheckpoint({"score/v": "max", "val_loss": "min"}, dirpath=folder / "front"),
        ]
        callbacks = {"without": others, "before": ours + others, "after": others + ours}[place]
        options = {"check_val_every_n_epoch": 1, "val_check_interval": 1.0, "max_steps": -1}
        options |= {"default_root_dir": folder, "enable_checkpointing": True, "max_epochs": 6}
        module = Writer()
        return fit(module, callbacks, **{**options, **limits}), module

    return train


NAME = "{step}-{val_loss:.2f}"


@pytest.mark.lightning
@pytest.mark.parametrize("place", ["before", "after"])
def test_callbacks_of_lightning_do_the_same(place: str, run, tmp_path: Path) -> None:
    facts = []
    for folder, where in ((tmp_path / "plain", "without"), (tmp_path / "with", place)):
        theirs = [
            pl.callbacks.EarlyStopping("val_loss", patience=3),
            ModelCheckpoint(folder / "theirs", NAME, monitor="val_loss", save_top_k=2),
            pl.callbacks.StochasticWeightAveraging(0.1, swa_epoch_start=4),
        ]
        trainer, module = run(folder, theirs, where)
        facts.append(
            {
                "steps": trainer.global_step,
                "rates": module.rates,
                "weight": module.weight.item(),
                "loss": trainer.callback_metrics["val_loss"].item(),
                "files": sorted(path.name for path in (folder / "theirs").glob("*")),
                "states": [str(each.state_dict()).replace(str(folder), "") for each in theirs],
            }
        )
    expected, found = facts
    assert found == expected
    # Worked out by hand: val_loss is best at step 2, and then does not improve.
    assert expected["steps"] == 5
    assert expected["rates"][:4] == [1, 1, 1, 0.5]
    assert expected["files"] == ["step=2-val_loss=0.50.ckpt", "step=3-val_loss=0.60.ckpt"]
    kept = [path.name for path in (tmp_path / "with" / "ours").glob("step=*")]
    assert kept == ["step=000003-v=0.300.ckpt"]


@pytest.mark.parametrize(
    ("limits", "stopped"), [({}, 3), ({"min_epochs": 5}, 5), ({"min_steps": 4}, 4)]
)
def test_our_stop_waits_for_the_minimum_of_the_trainer(limits, stopped, run, tmp_path) -> None:
    # val_loss is best at step 2; the first one after it that may stop does.
    stop = RewardEarlyStopping("val_loss", "min", patience=1)
    trainer, _ = run(tmp_path, [stop], "without", **limits)
    assert (trainer.global_step, stop.stopped_step) == (stopped, stopped)
    assert stop.stopped_by == "patience_exhausted"


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_last_checkpoint_of_lightning_keeps_its_name(place: str, run, tmp_path: Path) -> None:
    theirs = ModelCheckpoint(tmp_path / "ours", NAME, save_last=True)
    trainer, _ = run(tmp_path, [theirs], place)
    ours = next(each for each in trainer.callbacks if isinstance(each, RewardCheckpoint))
    paths = [Path(each.last_model_path) for each in (theirs, ours)]
    assert [path.name for path in paths] == ["last.ckpt", "last-v1.ckpt"]
    assert all(path.is_file() for path in paths)


@pytest.mark.parametrize("step", [None, 40.0])
def test_an_evaluation_leaves_the_row_of_the_module(step: float | None, run, tmp_path) -> None:
    def evaluate(folder: Path, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
        logger = HistoryLogger(str(folder))
        trainer, module = run(folder, [], place, logger=logger)
        if step is not None:  # the axis of the module's rows
            module.on_validation_epoch_end = lambda: module.log("step", step)
        (result,) = trainer.validate(module, verbose=False)
        return result, JsonLog(logger.path).read()[-1]

    plain, beside = evaluate(tmp_path / "plain", "without"), evaluate(tmp_path / "with", "after")
    for alone, found in zip(plain, beside, strict=True):
        assert alone == {k: v for k, v in found.items() if not k.startswith("score/")}
    assert plain[1]["step"] == (6 if step is None else 40)


averaging = getattr(pl.callbacks, "EMAWeightAveraging", None)


@pytest.mark.skipif(averaging is None, reason="Lightning before 2.6 has no EMAWeightAveraging")
def test_averaged_weights_are_scored_and_saved(run, tmp_path: Path) -> None:
    assert averaging is not None
    trainer, module = run(tmp_path, [averaging(decay=0.5)], "before")
    best = next(each for each in trainer.callbacks if isinstance(each, RewardCheckpoint))
    saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]["weight"].item()
    assert saved == module.scored[2] != 3.0
    with pytest.raises(Exception, match="WeightAveraging"):
        run(tmp_path / "other", [averaging(decay=0.5)], "after")
