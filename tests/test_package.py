"""Contents of the wheel, and what it does in an environment without extras."""

from __future__ import annotations

import json
import os
import re
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

from ctrlreward.extras import EXTRA_OF

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("callbacks", "configs", "recipes")  # folders that links in ctrlreward/ lead to


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


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> ZipFile:
    return ZipFile(wheel_file)


SUFFIXES = {".py", ".pyi", ".yaml", ".json", ".csv", ".tsv", ".txt", ".html", ".css", ".js", ".md"}


def names_in_the_tree() -> set[str]:
    """Return the wheel's expected names of all modules and data files in the working tree."""
    folders = {"ctrlreward": "ctrlreward"} | {name: f"ctrlreward/{name}" for name in LINKED}
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES or path.name == "py.typed"
    }


def test_wheel_contains_exactly_the_package(wheel: ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == names_in_the_tree()
    assert {name.split("/")[0] for name in names} == {"ctrlreward"}
    assert "ctrlreward/py.typed" in names
    assert "ctrlreward/scorers/prompts/sentiment.yaml" in names


def test_wheel_contains_licence_and_entry_point(wheel: ZipFile) -> None:
    metadata = {name.split(".dist-info/")[1]: name for name in wheel.namelist() if "-info/" in name}
    assert "Apache License" in wheel.read(metadata["licenses/LICENSE"]).decode()
    assert "ctrlreward = ctrlreward.cli:main" in wheel.read(metadata["entry_points.txt"]).decode()


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


def command(line: str, file: str, content: str = "") -> str:
    """Return code that writes a file and runs a command line."""
    return f"""
from pathlib import Path
from ctrlreward.cli import main
Path({file!r}).parent.mkdir(exist_ok=True)
Path({file!r}).write_text({content!r})
main({line.split()})"""


MISSING = {
    "plots": "from ctrlreward.plots import new_figure; new_figure(1, 1)",
    "parquet": command("score a.parquet b.csv --scorers Distinct", "a.parquet"),
    "lightning": "import ctrlreward.lightning",
    "serve": command("serve reward.yaml", "reward.yaml", "components: {d: Distinct}"),
}


PEGASUS = str(ROOT / "tests" / "golden" / "pegasus-mini")
DEMO = str(ROOT / "configs" / "controlled_generation" / "sentiment_smollm2.yaml")
PRESENT = {
    "found": f"""
from importlib.util import find_spec
print([name for name in {[*EXTRA_OF, "trl"]} if find_spec(name)])""",
    "star": "from ctrlreward import *; print(CTRLEval.__name__)",
    "reward": f"""
from ctrlreward import CTRLEval, Distinct, Reward
ctrleval = CTRLEval({PEGASUS!r}, aspects=["attribute_relevance"])
reward = Reward({{"relevance": (ctrleval["attribute_relevance"], 1.0)}})
scored = reward(["The food was good."], labels="positive").total
print(scored, Distinct({PEGASUS!r}).score(["a a"], groups=["x"])["distinct_1"])""",
    "score": f"""
from pathlib import Path
from ctrlreward.cli import main
Path("texts.jsonl").write_text('{{"text": "The food was good.", "label": "positive"}}\\n')
options = ["--scorers=CTRLEval", "--scorers.model={PEGASUS}", "--scorers.aspects=[coherence]"]
main(["score", "texts.jsonl", "out.csv", *options])
print(Path("out.csv").read_text().split()[0])""",
    "train": f"from ctrlreward.cli import main; main(['train', '--config', {DEMO!r}])",
}


@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named(extra: str, last_lines: dict[str, Any]) -> None:
    assert last_lines[extra].endswith(f"pip install 'ctrlreward[{extra}]'")


def test_what_needs_no_extra(last_lines: dict[str, Any]) -> None:
    assert last_lines["star"] == "CTRLEval"
    assert re.fullmatch(r"\[0\.\d+\] \[0?\.\d+\]", last_lines["reward"])
    assert last_lines["score"] == "text,label,coherence"
    assert last_lines["modules"] > 100  # are imported
    assert last_lines["found"] == "[]"  # of the packages of extras
    assert last_lines["train"] == "error: WandbLogger needs wandb: pip install 'ctrlreward[wandb]'"
