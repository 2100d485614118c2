"""The examples in docstrings run and print what they show, and no public name lacks one.

A package is covered by its name in `PACKAGES`. A class has an example if its docstring or that of
one of its public methods has one.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import pytest

PACKAGES = ["ctrlreward.functional", "ctrlreward.selection", "ctrlreward.adapters"]

# Packages whose modules are public: not only the names of `__all__` need an example.
PUBLIC_MODULES = ["ctrlreward.functional", "ctrlreward.selection", "ctrlreward.adapters"]


def modules_of(package: str) -> list[str]:
    """Names of a package and of its modules, found without importing them."""
    spec = find_spec(package)
    assert spec is not None
    inner = pkgutil.iter_modules(spec.submodule_search_locations)
    return [package, *(f"{package}.{m.name}" for m in inner if not m.ispkg and m.name[0] != "_")]


def examples_of(module: ModuleType) -> Iterator[doctest.DocTest]:
    """The examples of a module's own names."""
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        if test.examples:
            yield test


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


@pytest.mark.parametrize("name", [name for package in PACKAGES for name in modules_of(package)])
def test_examples_print_what_they_show(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for test in examples_of(importlib.import_module(name)):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    missing = without_example(package)
    assert not missing, f"no example: {', '.join(missing)}"
