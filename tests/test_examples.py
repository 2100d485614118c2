"""The examples in docstrings run and print what they show.

Short names of models are tiny models with random weights, and so is the classifier on the hub. With
CTRLREWARD_LIGHTNING=lightning the examples of callbacks run under `lightning.pytorch`.
"""

from __future__ import annotations

import doctest
import importlib
import os
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.doctest import _get_checker, _get_number_flag

ROOT = Path(__file__).resolve().parent.parent
LIGHTNING = {
    "pytorch_lightning": "lightning.pytorch",
    "ctrlreward.callbacks": "ctrlreward.lightning",
    "ctrlreward.policy": "ctrlreward.lightning",
}


def modules_with_examples() -> Iterator[str]:
    """Names of the modules, read without importing them."""
    for file in sorted(glob("ctrlreward/**/*.py", root_dir=ROOT, recursive=True)):  # also by links
        if ">>> " in (ROOT / file).read_text("utf-8"):
            yield file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def examples_of(module: ModuleType) -> list[doctest.DocTest]:
    """The examples of a module's own names, for the Lightning package under test.

    An example has these names, `np` and `torch`. It imports all others, so that it can be pasted.
    """
    own = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    for name, item in vars(module).items():
        if name[0] != "_" and getattr(item, "__module__", "") == module.__name__:
            own[name] = item
    own |= {"np": importlib.import_module("numpy"), "torch": importlib.import_module("torch")}
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__, globs=own)
    # One without a line has the docstring of another module.
    tests = [test for test in tests if test.examples and test.lineno is not None]
    if os.environ.get("CTRLREWARD_LIGHTNING") == "lightning":
        for example in (example for test in tests for example in test.examples):
            for name, other in LIGHTNING.items():
                example.source = example.source.replace(name, other)
    return tests


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


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_print_what_they_show(name: str, user: None) -> None:
    # Numbers as far as they are shown: processors differ in the last digit.
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | _get_number_flag()
    runner = doctest.DocTestRunner(_get_checker(), optionflags=flags)
    said: list[str] = []
    tests = examples_of(importlib.import_module(name))
    for test in tests:
        runner.run(test, out=said.append)
    assert tests
    assert not runner.failures, "".join(said)
