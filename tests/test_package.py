"""Contents of the wheel, and what it does in an environment without extras."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("callbacks", "configs", "recipes")  # folders that links in ctrlreward/ lead to
PEGASUS = ROOT / "tests" / "golden" / "pegasus-mini"
DEMO = ROOT / "configs" / "controlled_generation" / "sentiment_smollm2.yaml"


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once."""
    # From a copy: setuptools writes into the source folder and reuses what earlier builds left.
    source = tmp_path_factory.mktemp("source")
    for folder in ("ctrlreward", *LINKED):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    built = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


SUFFIXES = {".py", ".pyi", ".yaml", ".json", ".csv", ".tsv", ".txt", ".html", ".css", ".js", ".md"}


def test_wheel_contains_exactly_the_package(wheel_file: Path) -> None:
    """All modules and data files of the working tree."""
    folders = {"ctrlreward": "ctrlreward"} | {name: f"ctrlreward/{name}" for name in LINKED}
    expected = {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES or path.name == "py.typed"
    }
    names = {name for name in ZipFile(wheel_file).namelist() if ".dist-info/" not in name}
    assert names == expected
    assert "ctrlreward/py.typed" in names


# An environment without extras


def required(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Return a distribution and all that it requires, by the metadata of this environment."""
    found: dict[tuple[str, frozenset[str]], None] = {}
    todo = [(name, extras)]
    while todo:
        item = todo.pop()
        if item in found:
            continue
        found[item] = None
        for wanted in map(Requirement, distribution(item[0]).requires or []):
            environments = [{"extra": extra} for extra in ("", *item[1])]
            if wanted.marker is None or any(map(wanted.marker.evaluate, environments)):
                todo.append((wanted.name, frozenset(wanted.extras)))
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def bare(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel and the packages that it requires, and no others.

    Nothing is downloaded: each required package is a link to the one of this environment.
    """
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with ZipFile(wheel_file) as archive:
        archive.extractall(packages)  # all that an installer of a pure wheel does there
    for name in required("ctrlreward") - {"ctrlreward"}:
        for top in {file.parts[0] for file in distribution(name).files or []} - {".."}:
            source, link = distribution(name).locate_file(top), packages / top
            if top != "__pycache__" and not link.exists():
                link.symlink_to(source)
    return folder / "bin" / "python"


SCRIPT = """
import contextlib, importlib, io, json, pkgutil, sys, traceback
import ctrlreward
alone, snippets = json.load(sys.stdin)
def names(path, prefix):
    for module in pkgutil.iter_modules(path, prefix):
        if module.name in alone or module.name == "ctrlreward.__main__":
            continue
        yield module.name
        if module.ispkg:
            yield from names(importlib.import_module(module.name).__path__, module.name + ".")
modules = list(names(ctrlreward.__path__, "ctrlreward."))
for name in modules:
    importlib.import_module(name)
lines = {"modules": len(modules)}
for name, code in snippets.items():
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
    lines[name] = said.getvalue().splitlines()[-1]
print(json.dumps(lines))
"""


@pytest.fixture(scope="module")
def last_lines(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Last line that each snippet prints without extras; `modules` is the number of imports."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "texts.parquet").touch()
    (folder / "texts.jsonl").write_text('{"text": "The food was good.", "label": "positive"}\n')
    (folder / "reward.yaml").write_text("components: {d: Distinct}")
    process = subprocess.run(
        [bare, "-c", SCRIPT],
        cwd=folder,
        env=os.environ | {"CTRLREWARD_CACHE": str(folder / "cache")},
        input=json.dumps([EXTRA_ALONE, MISSING | PRESENT]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_import_is_fast_since_it_loads_no_other_package(bare: Path, tmp_path: Path) -> None:
    """But the one that imports the others later; torch and transformers take seconds."""
    code = """
import sys
before = set(sys.modules)
import ctrlreward
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names))"""
    said = subprocess.check_output([bare, "-c", code], cwd=tmp_path, text=True)
    assert said.split() == ["ctrlreward", "lazy_loader"]


# Modules that an extra is for as a whole; whoever imports them asks for the extra first.
EXTRA_ALONE = [
    "ctrlreward.lightning",
    "ctrlreward.serving.get_reward",
    "ctrlreward.serving.ray_serve",
    "ctrlreward.serving.application",
    "ctrlreward.serving.batcher",
    "ctrlreward.serving.serving_metrics",
]


COMMAND = "from ctrlreward.cli import main; main({})"
MISSING = {
    "parquet": COMMAND.format("score texts.parquet b.csv --scorers Distinct".split()),
    "lightning": "import ctrlreward.lightning",
    "serve": COMMAND.format(["serve", "reward.yaml"]),
    "wandb": COMMAND.format(["train", "--config", str(DEMO)]),
}
PRESENT = {
    "star": "from ctrlreward import *; print(CTRLEval.__name__)",
    "score": COMMAND.format(
        f"score texts.jsonl out.csv --scorers CTRLEval "
        f"--scorers.model={PEGASUS} --scorers.aspects=coherence".split()
    )
    + "; print(open('out.csv').readline().strip())",
}


@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named(extra: str, last_lines: dict[str, Any]) -> None:
    assert last_lines[extra].endswith(f"pip install 'ctrlreward[{extra}]'")


def test_what_needs_no_extra(last_lines: dict[str, Any]) -> None:
    assert last_lines["modules"] > 100  # are imported
    assert last_lines["star"] == "CTRLEval"
    assert last_lines["score"] == "text,label,coherence"
