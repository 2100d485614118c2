"""One module uses private names of Lightning, and Lightning still has them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from lightning_choice import (
    FABRIC,
    LIGHTNING,
    CSVLogger,
    EarlyStopping,
    HistoryLogger,
    Logger,
    ModelCheckpoint,
    RewardCheckpoint,
    RolloutSamples,
    WandbLogger,
    pl,
)

from ctrlreward import RewardBatch
from ctrlreward.callbacks import lightning_internals
from ctrlreward.files import JsonLog
from ctrlreward.runs.results import read_run

pytestmark = pytest.mark.lightning
TrainingEpochLoop = import_module(f"{LIGHTNING}.loops.training_epoch_loop")._TrainingEpochLoop

ROOT = Path(__file__).parents[2]
# Links in ctrlreward/ to the first two are not followed.
FOLDERS = ("callbacks", "recipes", "ctrlreward")
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
ATTRIBUTES = {
    "_batches_that_stepped",
    "_last_checkpoint_saved",
    "_last_global_step_saved",
    "_logger_connector",
    "_prefix",
}


def private_names(path: Path) -> set[str]:
    """Return all names with one leading underscore that a module defines or looks up."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def knows_lightning(path: Path) -> bool:
    """Return True if a module imports Lightning or what subclasses it: its names may override."""
    given = [str(path.relative_to(ROOT)).replace("/", ".")] if path.is_relative_to(ROOT) else []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            given += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            given += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = ("callbacks.", "recipes.", "ctrlreward.callbacks", "ctrlreward.policy")
    return any(name.startswith(ours) or "lightning" in name for name in given)


def own_names(path: Path) -> set[str]:
    """Return the names of functions, classes' variables and attributes of `self` of a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return names


def names_of_lightning(path: Path, private: set[str]) -> set[str]:
    """Return the private names of Lightning that a module uses, except those of its own objects."""
    used = private_names(path) & private
    return used if knows_lightning(path) else used - own_names(path)


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
    folders = [*FOLDERS, "ctrlreward/adapters", "ctrlreward/huggingface", "ctrlreward/policy"]
    assert all(any(path.is_relative_to(ROOT / folder) for path in modules) for folder in folders)
    modules.remove(INTERNALS)
    used = {str(path.relative_to(ROOT)): names_of_lightning(path, private) for path in modules}
    assert {path: names for path, names in used.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(trainer): trainer._run(trainer.model)", {"_run"}),
        ("def f(trainer): trainer._run = None", {"_run"}),
        ("class Job:\n    def _run(self): self._run()", set()),
        ("class Job:\n    def __init__(self): self._run = 1", set()),
        (
            "import pytorch_lightning as pl\nclass Job(pl.Trainer):\n    def _run(self): ...",
            {"_run"},
        ),
        ("from ctrlreward.callbacks import X\nclass Y(X):\n    _run = 1\n    y = X._run", {"_run"}),
    ],
)
def test_a_private_name_of_lightning_is_found(source: str, found: set[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert names_of_lightning(path, {"_run"}) == found


def test_each_private_name_in_use_is_listed() -> None:
    used = private_names(INTERNALS)
    assert used == {*USED, *ATTRIBUTES}
    explained = lightning_internals.__doc__ or ""
    assert [name for name in used if f"{name}`" not in explained] == []


@pytest.mark.parametrize("name", USED)
def test_lightning_still_has_the_name(name: str) -> None:
    assert inspect.isfunction(getattr(USED[name], name))


@pytest.mark.parametrize("updates", [1, 3])
def test_every_record_of_a_validation_has_the_number_of_its_optimizer_steps(
    fit, counter, watch, held_out, tmp_path: Path, updates: int
) -> None:
    """Under manual optimisation with several updates per batch, too, and across a resume."""

    class Manual(counter):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = updates == 1
            self.last_rollout = None

        def training_step(self, batch: object, batch_idx: int) -> object:
            self.log("before_update", self.weight.detach())
            for _ in range(0 if updates == 1 else updates):
                self.optimizers().zero_grad()
                self.manual_backward(-self.weight)
                self.optimizers().step()
            self.last_rollout = (held_out, rewards)
            return super().training_step(batch, batch_idx) if updates == 1 else None

    def train(batches: int, ckpt_path: str | None) -> None:
        scorer = watch([0.1 * i for i in range(20)])
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), save_top_k=-1)
        fit(
            Manual(),
            [scorer, keeper, RolloutSamples(every_n_batches=1)],
            logger=[HistoryLogger(str(tmp_path)), CSVLogger(tmp_path, "csv", version=batches)],
            log_every_n_steps=1,
            max_steps=batches * updates,
            val_check_interval=2,
            ckpt_path=ckpt_path,
        )

    total = np.zeros(len(held_out))
    rewards = RewardBatch(total, {"v": total}, total > 0, 0.0)
    train(4, None)
    train(6, "last")
    ends = [2 * updates, 4 * updates, 6 * updates]
    rows = JsonLog(tmp_path / "metrics.jsonl").read()
    csv = read_run(str(tmp_path / "csv" / "version_6")).curves["score/v"]
    names = [path.name for path in sorted((tmp_path / "kept").glob("step=*.ckpt"))]
    assert [row["step"] for row in rows if "score/v" in row] == ends
    assert list(csv) == ends[2:]
    assert [int(name[5:11]) for name in names] == ends
    files = sorted((tmp_path / "samples" / "score").iterdir())
    assert [int(path.stem[5:]) for path in files] == ends
    # The row of a training step has the number that is reached by its updates.
    trained = {row["step"]: row["before_update"] for row in rows if "before_update" in row}
    assert trained == {updates * (i + 1): float(updates * i) for i in range(6)}
    files = sorted((tmp_path / "samples" / "rollout").iterdir())
    assert [int(path.stem[5:]) for path in files] == list(trained)
