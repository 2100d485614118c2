"""One module uses private names of Lightning, and Lightning still has them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from lightning_choice import (
    FABRIC,
    LIGHTNING,
    EarlyStopping,
    Logger,
    ModelCheckpoint,
    RewardCheckpoint,
    WandbLogger,
    pl,
)

from ctrlreward.callbacks import lightning_internals

DummyLogger = import_module(f"{LIGHTNING}.loggers.logger").DummyLogger
TrainingEpochLoop = import_module(f"{LIGHTNING}.loops.training_epoch_loop")._TrainingEpochLoop

ROOT = Path(__file__).parents[2]
FOLDERS = ("callbacks", "recipes", "ctrlreward/policy", "ctrlreward/commands")
INTERNALS = ROOT / "callbacks" / "lightning_internals.py"
USED = {
    "_generate_state_key": pl.Callback,
    "_get_metric_interpolated_filepath_name": ModelCheckpoint,
    "_monitor_candidates": ModelCheckpoint,
    "_remove_checkpoint": ModelCheckpoint,
    "_save_checkpoint": ModelCheckpoint,
    "_save_last_checkpoint": ModelCheckpoint,
    "_should_remove_checkpoint": ModelCheckpoint,
    "_should_skip_saving_checkpoint": ModelCheckpoint,
}
ATTRIBUTES = {"_batches_that_stepped", "_id", "_offline", "_prefix", "_wandb_init"}


def private_names(path: Path) -> set[str]:
    """Return all names with one leading underscore that a module defines or looks up."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def lightnings() -> Iterator[str]:
    """Yield the private names of the Lightning classes that we subclass or hold."""
    held = (pl.Trainer, pl.LightningModule, pl.LightningDataModule, pl.Callback, Logger)
    for kind in (*held, EarlyStopping, ModelCheckpoint, TrainingEpochLoop, WandbLogger):
        for base in kind.__mro__:
            if base.__module__.startswith((LIGHTNING, FABRIC)):
                yield from private_names(Path(inspect.getfile(base)))


def test_no_other_module_uses_a_private_name_of_lightning() -> None:
    """Nor defines one: in a subclass it would override Lightning's by accident."""
    private = set(lightnings())
    assert {*USED, *ATTRIBUTES, "_trainer", "_run_early_stopping_check"} <= private
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    modules.remove(INTERNALS)
    assert len(modules) > 40
    used = {str(path.relative_to(ROOT)): private_names(path) & private for path in modules}
    assert {path: names for path, names in used.items() if names} == {}


def test_each_private_name_in_use_is_listed() -> None:
    used = private_names(INTERNALS)
    assert used == {*USED, *ATTRIBUTES}
    explained = lightning_internals.__doc__ or ""
    assert [name for name in used if f"{name}`" not in explained] == []


@pytest.mark.parametrize("name", USED)
def test_lightning_still_has_the_name(name: str) -> None:
    assert inspect.isfunction(getattr(USED[name], name))


def test_lightning_logs_validations_under_the_step(fit, counter) -> None:
    class Logging(counter):
        def validation_step(self, batch: object, batch_idx: int) -> None:
            self.log("weight", self.weight)

        def on_validation_end(self) -> None:
            steps.append(lightning_internals.logged_step(self.trainer))

    class Steps(DummyLogger):
        def log_metrics(self, metrics: object, step: int | None = None) -> None:
            logged.append(step)

    steps: list[int] = []
    logged: list[int | None] = []
    fit(Logging(), [], max_steps=3, logger=Steps())
    assert steps == logged == [0, 1, 2]


def test_hooks_run_for_every_checkpoint(fit, counter, tmp_path) -> None:
    class Watched(RewardCheckpoint):
        def before_saving(self, trainer: pl.Trainer, path: str) -> None:
            assert not Path(path).exists() or path.endswith("last.ckpt")
            saved.append(Path(path).name)

        def after_removal(self, trainer: pl.Trainer, path: str) -> None:
            assert not Path(path).exists()
            removed.append(Path(path).name)

    class Logging(counter):
        def validation_step(self, batch: object, batch_idx: int) -> None:
            self.log("weight", self.weight)

    saved: list[str] = []
    removed: list[str] = []
    fit(Logging(), [Watched("weight", dirpath=str(tmp_path))], max_steps=2)
    first, second = "step=000001-weight=1.000.ckpt", "step=000002-weight=2.000.ckpt"
    assert saved == [first, "last.ckpt", second, "last.ckpt"]
    assert removed == [first]
