"""A file as users write them runs; `make lint` checks its types."""

from __future__ import annotations

import importlib
import inspect
import runpy
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("users_file.py")

# Module → its name in the file.
MODULES = {
    "ctrlreward": "cr",
    "ctrlreward.callbacks": "callbacks",
    "ctrlreward.functional": "functional",
    "ctrlreward.lightning": "lightning",
    "ctrlreward.policy": "policy",
    "ctrlreward.scorers": "scorers",
    "ctrlreward.selection": "selection",
    "ctrlreward.adapters.openrlhf": "openrlhf",
    "ctrlreward.adapters.torchmetrics": "torchmetrics",
    "ctrlreward.adapters.trl": "trl",
    "ctrlreward.adapters.verl": "verl",
}


def test_the_file_runs(
    workplace: dict[str, str], tiny_classifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "cpu")
    monkeypatch.setenv("PL_TRAINER_ENABLE_PROGRESS_BAR", "False")
    runpy.run_path(str(FILE), run_name="__main__")


def public_names(module: str) -> list[str]:
    """The names in `__all__`, or the functions and classes that a module without it defines."""
    item = importlib.import_module(module)
    own = [name for name, part in vars(item).items() if inspect.getmodule(part) is item]
    return getattr(item, "__all__", [name for name in own if name[0] != "_"])
