"""Modules of trainers from their wheels, imported without the packages that they depend on."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

from ctrlreward.models.cache import build_once
from ctrlreward.models.wheels import extract


class Client(NamedTuple):
    """A trainer's wheel; it is fetched on any Python, although it may be one of 3.11."""

    wheel: str
    sha256: str
    package: str  # folder of the package inside the wheel
    platform: str


OPENRLHF = Client(
    "openrlhf==0.11.2",
    "c969d70db03a70724c3d8a5a01186c6e0728bce624fb3dff95e39b5396acefa6",
    "openrlhf-0.11.2.data/purelib/openrlhf/",
    "cp311-manylinux1_x86_64",
)
VERL = Client(
    "verl==0.9.1",
    "db6e6f2a8d9d5808d9ec32d357a42319fdc6967df688ff9d9810050f49bfdd14",
    "verl/",
    "none-any",
)


class Importer:
    """Imports single modules of a client for one test: real code, without any `__init__`."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = client.wheel.partition("==")[0]
        self.folder = _fetched(client)
        self.monkeypatch = monkeypatch
        for init in self.folder.rglob("__init__.py"):
            package = ".".join([self.name, *init.relative_to(self.folder).parent.parts])
            empty = ModuleType(package)
            empty.__path__ = [str(init.parent)]
            monkeypatch.setitem(sys.modules, package, empty)

    def absent(self, *modules: str) -> None:
        """Put stand-ins in the place of modules that are not to be imported."""
        for module in modules:
            stand_in: Any = MagicMock(name=module)
            stand_in.__path__ = []
            self.monkeypatch.setitem(sys.modules, module, stand_in)

    def module(self, name: str) -> Any:
        """Import a module by its path below the package: `"utils.agent"`."""
        return importlib.import_module(f"{self.name}.{name}")

    def forget(self) -> None:
        """Remove the modules that were imported."""
        for module in [m for m in sys.modules if m.partition(".")[0] == self.name]:
            del sys.modules[module]


def _fetched(client: Client) -> Path:
    try:
        return build_once(client.wheel.replace("==", "-"), lambda folder: _fetch(client, folder))
    except OSError as error:
        pytest.skip(f"{client.wheel} can't be downloaded ({error})")


def _fetch(client: Client, folder: Path) -> None:
    work = folder / "wheel"
    work.mkdir()
    requirements = work / "requirements.txt"
    requirements.write_text(f"{client.wheel} --hash=sha256:{client.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(work), "--requirement", str(requirements)]
    command += _target(client.platform)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    (path,) = work.glob("*.whl")
    extract(path, client.package, folder)
    shutil.rmtree(work)


def _target(platform: str) -> Sequence[str]:
    if platform == "none-any":
        return ()
    abi, system = platform.split("-")
    version = ["--python-version", "3.11", "--implementation", "cp"]
    return [*version, "--abi", abi, "--platform", system]
