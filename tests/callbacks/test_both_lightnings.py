"""The two packages of Lightning side by side: the same names, and an error where they meet."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import lightning.pytorch
import pytest
import pytorch_lightning
from warm_python import run_warm

import ctrlreward.callbacks
import ctrlreward.lightning
import ctrlreward.policy
from ctrlreward.files import JsonLog
from ctrlreward.lightning_package import is_instance, package_of

HERE = {name: getattr(ctrlreward.callbacks, name) for name in ctrlreward.callbacks.__all__} | {
    name: getattr(ctrlreward.policy, name) for name in ctrlreward.policy.__all__
}
THERE = {name: getattr(ctrlreward.lightning, name) for name in ctrlreward.lightning.__all__}
FACES = sorted(name for name in HERE if HERE[name] is not THERE.get(name))
ARGUMENTS = {
    "BeforeAfter": ({"v": len}, ["The food"]),
    "GenerationScorer": ({"v": len}, ["The food"]),
    "ParetoCheckpoint": ({"score/v": "max", "score/l": "min"},),
    "ProxyGuard": ("score/v", "score/l"),
    "RewardShaping": ((0.0, 1.0),),
}


def test_both_have_the_same_names() -> None:
    assert sorted(HERE) == sorted(THERE)
    assert {"GenerationScorer", "PolicyTuner"} <= {*FACES}
    for name in FACES:
        assert HERE[name].__doc__ == THERE[name].__doc__
        kinds = ((HERE[name], "pytorch_lightning"), (THERE[name], "lightning.pytorch"))
        for kind, package in kinds:
            assert package_of(kind.__new__(kind)).name == package


def test_an_error_of_arguments_names_the_class_of_the_user() -> None:
    for name in set(FACES) - {"RewardEarlyStopping", "RewardCheckpoint", "ProxyGuard"}:
        with pytest.raises(TypeError, match=rf"^{name}\.__init__\(\) .*'wrong'"):
            HERE[name](wrong=1)
    for name in ("RewardEarlyStopping", "RewardCheckpoint", "ProxyGuard"):  # as their rules do
        with pytest.raises(TypeError, match="wrong") as error:
            HERE[name]("score/v", wrong=1)
        assert "Mixin" not in str(error.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "right"),
    [
        (HERE, lightning.pytorch, "ctrlreward.lightning"),
        (THERE, pytorch_lightning, "ctrlreward.callbacks"),
    ],
)
def test_a_callback_of_the_other_package_is_refused(ours, theirs, right: str, tmp_path) -> None:
    """But not the logger, which needs none."""
    for name in set(FACES) - {"PolicyTuner", "HistoryLogger"}:
        callback = ours[name](*ARGUMENTS.get(name, ()))
        trainer = trainer_of(theirs, tmp_path, callbacks=[callback], logger=False)
        with pytest.raises(Exception, match=f"Use `from {right} import {name}`") as error:
            trainer.fit(module_of(theirs))
        assert type(error.value).__name__ == "MisconfigurationException"
    logger = ours["HistoryLogger"](str(tmp_path))
    assert package_of(logger).name != theirs.__name__
    assert is_instance(logger, "Logger")
    assert not is_instance(logger, "CSVLogger")
    trainer_of(theirs, tmp_path, logger=logger).fit(module_of(theirs))
    assert [row["batch"] for row in JsonLog(logger.path).read()] == [0.0]


def module_of(package: object) -> object:
    class Module(import_module(f"{package.__name__}.demos.boring_classes").BoringModel):
        val_dataloader = None

        def training_step(self, batch: object, batch_idx: int) -> object:
            self.log("batch", float(batch_idx))
            return super().training_step(batch, batch_idx)

    return Module()


def trainer_of(package: object, folder: Path, **options: object) -> object:
    return package.Trainer(
        accelerator="cpu", default_root_dir=folder, log_every_n_steps=1, max_steps=1, **options
    )


FRESH = """
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] in ("ctrlreward", "lightning", "pytorch_lightning"):
        del sys.modules[name]
from ctrlreward.lightning import *
GenerationScorer, PolicyTuner
print("lightning.pytorch" in sys.modules, "pytorch_lightning" in sys.modules)
"""


def test_lightning_does_not_import_the_other(tmp_path: Path) -> None:
    """That `ctrlreward.callbacks` needs no `lightning` is part of `test_package.py`."""
    (tmp_path / "fresh.py").write_text(FRESH)
    ended = run_warm(tmp_path / "fresh.py", timeout=120)
    assert ended.stdout.split() == ["True", "False"], ended.stderr
