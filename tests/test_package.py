"""Contents of the wheel, and imports of the folders that are installed under `ctrlreward`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOVED = ("callbacks", "configs", "recipes")  # top-level folder → ctrlreward.<folder>


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    # From a copy: setuptools writes into the source folder and reuses what earlier builds left.
    source = tmp_path_factory.mktemp("source")
    for folder in ("ctrlreward", *MOVED):
        shutil.copytree(ROOT / folder, source / folder)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    built = run("-m", "build", "--wheel", "--no-isolation", cwd=source)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return ZipFile(path)


def names_in_the_tree() -> set[str]:
    """Return the wheel's expected names of all modules and data files in the working tree."""
    folders = {"ctrlreward": "ctrlreward"} | {name: f"ctrlreward/{name}" for name in MOVED}
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yaml"} or path.name == "py.typed"
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


def origins(cwd: Path, **env: str) -> list[str]:
    """Return the files that `ctrlreward.<folder>` would be imported from."""
    code = (
        "from importlib.util import find_spec\n"
        f"for name in {MOVED}: print(find_spec('ctrlreward.' + name).origin)"
    )
    process = run("-c", code, cwd=cwd, **env)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_unpacked_wheel_finds_its_moved_folders(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    package = tmp_path / "ctrlreward"
    assert origins(tmp_path, PYTHONPATH=str(tmp_path)) == [
        str(package / name / "__init__.py") for name in MOVED
    ]


def test_editable_install_finds_the_moved_folders_from_anywhere(tmp_path: Path) -> None:
    expected = [str(ROOT / name / "__init__.py") for name in MOVED]
    assert origins(ROOT) == expected
    assert origins(tmp_path) == expected


@pytest.mark.parametrize("folder", MOVED)
def test_importing_a_top_level_folder_raises(folder: str) -> None:
    process = run("-c", f"import {folder}", cwd=ROOT)
    assert process.stderr.splitlines()[-1] == (
        f"ImportError: there is no package '{folder}': import ctrlreward.{folder} instead"
    )
