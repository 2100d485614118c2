"""The two packages of Lightning side by side: the same names, and an error where they meet."""

from __future__ import annotations

import inspect
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


def build(name: str, faces: dict[str, type], curve: type) -> object:
    scorer = curve([0.0, 1.0])
    build = {
        "BeforeAfter": lambda kind: kind({"v": scorer["value"]}, ["The food"]),
        "GenerationScorer": lambda kind: kind({"v": scorer["value"]}, ["The food"]),
        "ParetoCheckpoint": lambda kind: kind({"score/v": "max", "score/l": "min"}),
        "ProxyGuard": lambda kind: kind("score/v", "score/l", held_out_mode="min"),
        "RewardShaping": lambda kind: kind(clip=(0.0, 1.0)),
    }.get(name, lambda kind: kind())
    return build(faces[name])


def test_both_have_the_same_names() -> None:
    assert sorted(HERE) == sorted(THERE)
    for name in FACES:
        assert inspect.signature(HERE[name]) == inspect.signature(THERE[name])
        assert HERE[name].__doc__ == THERE[name].__doc__
        assert len(HERE[name].__doc__) > 50
        assert package_of_class(HERE[name]) == "pytorch_lightning"
        assert package_of_class(THERE[name]) == "lightning.pytorch"
    assert "GenerationScorer" in FACES
    assert "PolicyTuner" in FACES


def package_of_class(kind: type) -> str:
    return package_of(kind.__new__(kind)).name


@pytest.mark.parametrize(
    ("ours", "theirs", "right"),
    [
        (HERE, lightning.pytorch, "ctrlreward.lightning"),
        (THERE, pytorch_lightning, "ctrlreward.callbacks"),
    ],
)
@pytest.mark.parametrize("name", [n for n in FACES if n not in ("PolicyTuner", "HistoryLogger")])
def test_a_callback_of_the_other_package_is_refused(
    name: str, ours: dict[str, type], theirs: object, right: str, curve, tmp_path
) -> None:
    trainer = trainer_of(theirs, tmp_path, callbacks=[build(name, ours, curve)], logger=False)
    with pytest.raises(Exception, match=f"Use `from {right} import {name}`") as error:
        trainer.fit(module_of(theirs))
    assert type(error.value).__name__ == "MisconfigurationException"


@pytest.mark.parametrize(
    ("ours", "theirs"), [(HERE, lightning.pytorch), (THERE, pytorch_lightning)]
)
def test_the_logger_needs_no_package(ours: dict[str, type], theirs: object, tmp_path) -> None:
    logger = ours["HistoryLogger"](str(tmp_path))
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


def test_types_are_told_apart(tmp_path) -> None:
    for faces, package in ((HERE, "pytorch_lightning"), (THERE, "lightning.pytorch")):
        logger = faces["HistoryLogger"](str(tmp_path))
        assert package_of(logger).name == package
        assert is_instance(logger, "loggers.Logger")
        assert not is_instance(logger, "loggers.CSVLogger")
    with pytest.raises(TypeError, match="object is a class of neither pytorch_lightning nor"):
        package_of(object())


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
