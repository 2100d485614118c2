"""Two CPU ranks that share the weights of a model: the same texts and decisions as one rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from module_files import load

sharded_ranks = load(Path(__file__).with_name("sharded_ranks.py"))

pytestmark = pytest.mark.lightning


@pytest.fixture(scope="module")
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama("abcde")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: str, run_script) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    run_script(Path(__file__).with_name("sharded_ranks.py"), folder, model, timeout=300)
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, json.loads(json.dumps(sharded_ranks.run("one rank", model, folder)))


def test_x(folder, seen, alone):
    print("ALONE", json.dumps(alone[1], indent=1))
    for k, v in seen[0].items():
        print(k, json.dumps(v, indent=1))
    import subprocess
    print(subprocess.run(["find", str(folder), "-not", "-path", "*samples*"], capture_output=True, text=True).stdout)
