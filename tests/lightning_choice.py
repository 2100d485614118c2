"""The Lightning package under test: `pytorch_lightning`, or `lightning.pytorch` if
CTRLREWARD_LIGHTNING=lightning.

Tests of callbacks and policy import Lightning, and our classes for it, from here, so that one
suite runs under both. Scripts that a test starts inherit the choice.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

NAME = os.environ.get("CTRLREWARD_LIGHTNING", "pytorch_lightning")
LIGHTNING, FABRIC, FACES = {
    "pytorch_lightning": (
        "pytorch_lightning",
        "lightning_fabric",
        ("ctrlreward.callbacks", "ctrlreward.policy"),
    ),
    "lightning": ("lightning.pytorch", "lightning.fabric", ("ctrlreward.lightning",)),
}[NAME]

pl = import_module(LIGHTNING)
errors = import_module(f"{FABRIC}.utilities.exceptions")
MisconfigurationException = errors.MisconfigurationException
for folder, base in (("callbacks", "Callback"), ("loggers", "Logger")):
    room = import_module(f"{LIGHTNING}.{folder}")
    kinds = {name: kind for name, kind in vars(room).items() if isinstance(kind, type)}
    globals().update(
        {n: k for n, k in kinds.items() if issubclass(k, kinds.get(base, pl.Callback))}
    )
for face in map(import_module, FACES):
    globals().update({name: getattr(face, name) for name in face.__all__})


def quiet_trainer(**options: Any) -> Any:
    """Return a trainer on the CPU that neither prints nor saves, except where options say so."""
    quiet = {
        "accelerator": "cpu",
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "logger": False,
    }
    return pl.Trainer(**{**quiet, **options})
