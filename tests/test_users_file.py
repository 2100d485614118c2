"""A file as users write them: it uses every public name and runs; `make lint` checks its types."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("module", MODULES)
def test_the_file_uses_every_public_name(module: str) -> None:
    nodes = list(ast.walk(ast.parse(FILE.read_text("utf-8"))))
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ctrlreward"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            used |= {f"cr.{name.split('.')[1]}" for name in names}
    names = public_names(module)
    assert names
    assert [name for name in names if f"{MODULES[module]}.{name}" not in used] == []
