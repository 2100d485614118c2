"""The examples in docstrings run and print what they show, and no public name lacks one.

A class has an example if its docstring or that of one of its public methods has one. Short names of
models are tiny models with random weights, and so is the classifier on the hub. With
CTRLREWARD_LIGHTNING=lightning the examples of callbacks run under `lightning.pytorch`.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from printed_numbers import FLAGS, PrintedNumbers

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "ctrlreward": "ctrlreward",
    "ctrlreward.callbacks": "callbacks",
    "ctrlreward.recipes": "recipes",
}

LIGHTNING = {
    "pytorch_lightning": "lightning.pytorch",
    "ctrlreward.callbacks": "ctrlreward.lightning",
    "ctrlreward.policy": "ctrlreward.lightning",
}

PACKAGES = [
    "ctrlreward",
    "ctrlreward.adapters",
    "ctrlreward.callbacks",
    "ctrlreward.functional",
    "ctrlreward.policy",
    "ctrlreward.scorers",
    "ctrlreward.selection",
]

# Packages whose modules are public: not only the names of `__all__` need an example.
PUBLIC_MODULES = ["ctrlreward.functional", "ctrlreward.adapters"]


def modules_with_examples() -> Iterator[str]:
    """Names of the modules, read without importing them."""
    for package, folder in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in file.read_text("utf-8"):
                parts = file.relative_to(ROOT / folder).with_suffix("").parts
                yield ".".join([package, *(part for part in parts if part != "__init__")])


def modules_of(package: str) -> list[str]:
    """Names of a package and of its modules, found without importing them."""
    spec = find_spec(package)
    assert spec is not None
    inner = pkgutil.iter_modules(spec.submodule_search_locations)
    return [package, *(f"{package}.{m.name}" for m in inner if not m.ispkg and m.name[0] != "_")]


def examples_of(module: ModuleType) -> list[doctest.DocTest]:
    """The examples of a module's own names, for the Lightning package under test.

    An example has these names, `np` and `torch`. It imports all others, so that it can be pasted.
    """
    names = [*own_names(module), *getattr(module, "__all__", ())]
    own = {name: getattr(module, name) for name in names}
    own |= {"np": importlib.import_module("numpy"), "torch": importlib.import_module("torch")}
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__, globs=own)
    # One without a line has the docstring of another module.
    tests = [test for test in tests if test.examples and test.lineno is not None]
    for example in (example for test in tests for example in test.examples):
        if os.environ.get("CTRLREWARD_LIGHTNING") == "lightning":
            for name, other in LIGHTNING.items():
                example.source = example.source.replace(name, other)
    return tests


def own_names(module: ModuleType) -> list[str]:
    """The public functions and classes that a module defines."""
    return [
        name
        for name, item in vars(module).items()
        if name[0] != "_" and getattr(item, "__module__", "") == module.__name__
    ]


def has_example(item: object) -> bool:
    """True if the docstring of a function, or of a class or a public part of it, has one."""
    parts = [item]
    for name, part in vars(item).items() if inspect.isclass(item) else ():
        if name[0] != "_" and (inspect.isroutine(part) or isinstance(part, property)):
            parts.append(part)
    return any(">>>" in (part.__doc__ or "") for part in parts)


def without_example(package: str) -> list[str]:
    root, *modules = map(importlib.import_module, modules_of(package))
    public = {f"{package}.{name}": getattr(root, name) for name in getattr(root, "__all__", ())}
    for module in modules if package in PUBLIC_MODULES else ():
        for name in own_names(module):
            public[f"{module.__name__}.{name}"] = getattr(module, name)
    assert public
    return [
        name
        for name, item in public.items()
        if (inspect.isclass(item) or inspect.isroutine(item)) and not has_example(item)
    ]


@pytest.fixture
def user(
    workplace: dict[str, str],
    tiny_classifier: str,
    tiny_reward_model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty folder, models by their names, and trainers that print nothing."""
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "cpu")
    monkeypatch.setenv("PL_TRAINER_ENABLE_PROGRESS_BAR", "False")
    monkeypatch.setenv("PL_TRAINER_ENABLE_MODEL_SUMMARY", "False")


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_print_what_they_show(name: str, user: None) -> None:
    runner = doctest.DocTestRunner(PrintedNumbers(), optionflags=FLAGS)
    said: list[str] = []
    tests = examples_of(importlib.import_module(name))
    for test in tests:
        runner.run(test, out=said.append)
    assert tests
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    missing = without_example(package)
    assert not missing, f"no example: {', '.join(missing)}"
