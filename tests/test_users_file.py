"""A file as users write them: it uses every public name, runs, and passes `mypy --strict`."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

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

# Mistakes → the code of mypy's error.
MISTAKES = {
    'cr.CTRLEval(aspects="coherense")': "arg-type",
    'cr.CTRLEval(dtype="float8")': "arg-type",
    'cr.Perplexity(devise="cpu")': "call-arg",
    'cr.Accuracy(labels=["bad", "good"])': "call-arg",
    "cr.Similarity().score(3)": "arg-type",
    'cr.Similarity().score(["soup"], sources=3)': "arg-type",
    "cr.Reward(3)": "arg-type",
    'cr.Reward({"fluency": "perplexity"})': "dict-item",
    'cr.Reward({"content": cr.Similarity()}, aggregate="weigthed")': "arg-type",
    "cr.Reward({'content': cr.Similarity()})(3)": "arg-type",
    'cr.Similarity().score(["soup"], lable="good")': "call-arg",
    "cr.CtrlEval()": "attr-defined",
    'callbacks.GenerationScorer(cr.Similarity(), ["soup"])': "arg-type",
    'callbacks.RewardCheckpoint("score/content", mode="maximum")': "arg-type",
    'lightning.RewardEarlyStopping("score/content", patience="3")': "arg-type",
    'policy.PolicyTuner("smollm2-135m", 3)': "arg-type",
    'lightning.Objective("gpro")': "arg-type",
    "trl.as_reward_funcs(3)": "arg-type",
    'selection.StopRule("score/content", mode="maximum")': "arg-type",
    'functional.krippendorff_alpha([[1, 2]], level="ordered")': "arg-type",
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


@pytest.fixture(scope="module")
def errors(
    wheel_file: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, list[tuple[int, str]]]:
    """Line and code of mypy's errors in the file (`"users_file"`) and in the mistakes.

    mypy sees the wheel as installed: a package on the path of the interpreter, not of mypy.
    """
    folder = tmp_path_factory.mktemp("user")
    ZipFile(wheel_file).extractall(folder / "installed")
    imports = "import ctrlreward as cr\nfrom ctrlreward import callbacks, functional, lightning"
    imports += ", policy, selection\nfrom ctrlreward.adapters import trl\n"
    (folder / "mistakes.py").write_text(imports + "\n".join(MISTAKES) + "\n")
    (folder / "users_file.py").write_text(FILE.read_text("utf-8"), "utf-8")
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("mypy")  # torch and transformers take a minute without it
    process = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, *folder.glob("*.py")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "installed")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found: dict[str, list[tuple[int, str]]] = {"users_file": [], "mistakes": []}
    print(process.stdout)  # pytest shows it if a test fails
    for name, line, code in re.findall(
        r"^(?:.*/)?(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", process.stdout, re.MULTILINE
    ):
        found[name].append((int(line), code))
    assert process.stdout.splitlines()[-1].startswith(
        f"Found {sum(map(len, found.values()))} errors in"
    ), process.stdout + process.stderr
    return found


def test_the_file_passes_mypy_strict(errors: dict[str, list[tuple[int, str]]]) -> None:
    assert errors["users_file"] == []


def test_mypy_finds_each_mistake(errors: dict[str, list[tuple[int, str]]]) -> None:
    assert errors["mistakes"] == list(enumerate(MISTAKES.values(), start=4))
