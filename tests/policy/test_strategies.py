"""Strategies that split the model over the ranks are refused by the module."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from lightning_choice import LIGHTNING, MisconfigurationException, pl
from torch.utils.data import DataLoader

from ctrlreward import Samples
from ctrlreward.lightning_package import SHARDING

pytestmark = pytest.mark.lightning
strategies = import_module(f"{LIGHTNING}.strategies")


def test_refuses_a_trainer_that_splits_the_model(tuner, tmp_path: Path) -> None:
    """The only one of these strategies that Lightning starts on the CPU, in a real trainer."""
    strategy = strategies.ModelParallelStrategy()
    trainer = pl.Trainer(
        accelerator="cpu", barebones=True, default_root_dir=tmp_path, devices=1, strategy=strategy
    )
    with pytest.raises(MisconfigurationException, match="ModelParallelStrategy"):
        trainer.fit(tuner(), DataLoader([Samples(["ab"])], batch_size=None))


@pytest.mark.parametrize("name", SHARDING)
def test_each_strategy_is_refused(tuner, monkeypatch, name) -> None:
    kind = getattr(strategies, name)
    trainer = pl.Trainer(accelerator="cpu", barebones=True)
    # Without __init__, since that of DeepSpeed's needs its package.
    monkeypatch.setattr(trainer._accelerator_connector, "strategy", kind.__new__(kind))
    module = tuner()
    module.trainer = trainer
    with pytest.raises(MisconfigurationException, match=name):
        module.setup("fit")


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_refuses_a_trainer_that_converts_the_adapter(tuner, tmp_path: Path, precision) -> None:
    trainer = pl.Trainer(
        accelerator="cpu", barebones=True, default_root_dir=tmp_path, precision=precision
    )
    with pytest.raises(MisconfigurationException, match="bf16-mixed"):
        trainer.fit(tuner(), DataLoader([Samples(["ab"])], batch_size=None))
