"""Trainers that split the model over the ranks, or convert the adapter, are refused."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lightning_choice import LIGHTNING, MisconfigurationException, pl
from torch.utils.data import DataLoader

from ctrlreward import Samples
from ctrlreward.lightning_package import SHARDING

pytestmark = pytest.mark.lightning
strategies = import_module(f"{LIGHTNING}.strategies")


@pytest.mark.parametrize("refused", ["ModelParallelStrategy", "bf16-true", "64-true"])
def test_a_real_trainer(tuner, tmp_path: Path, refused: str) -> None:
    """Of these strategies Lightning starts only one on the CPU."""
    options: dict[str, Any] = {"precision": refused}
    if refused in SHARDING:
        options = {"strategy": getattr(strategies, refused)(), "devices": 1}
    trainer = pl.Trainer(accelerator="cpu", barebones=True, default_root_dir=tmp_path, **options)
    with pytest.raises(MisconfigurationException, match=refused):
        trainer.fit(tuner(), DataLoader([Samples(["ab"])], batch_size=None))
