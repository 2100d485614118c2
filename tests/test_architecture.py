"""The table of layers in docs/architecture.md, enforced on every import, also in functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAPERS = "ctrlreward.recipes.papers"


def layers() -> dict[str, tuple[int, int]]:
    """Package → its layer in the page's table, and its place from the bottom of the table."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| `(.+?)` \|", page, re.M)
    assert rows == sorted(rows, key=lambda row: row[0], reverse=True)
    return {
        package.removesuffix("/").removesuffix(".py"): (int(layer), place)
        for place, (layer, package) in enumerate(reversed(rows))
    }


def sources() -> dict[str, Path]:
    """Module → its file."""
    files = glob("ctrlreward/**/*.py", root_dir=ROOT, recursive=True)  # also by links
    return {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): ROOT / file
        for file in sorted(files)
    }


LAYERS, FILES = layers(), sources()


def package_of(module: str) -> str:
    """`ctrlreward.scorers.base` → `scorers`; the package itself is its interface."""
    return module.split(".")[1] if "." in module else ""


def imports() -> Iterator[tuple[str, str]]:
    """Yield each module and what it imports from ctrlreward, also in functions, and for types."""
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, "imports are absolute"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name.startswith("ctrlreward."):
                    yield module, name if name in FILES else name.rpartition(".")[0]


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in FILES} - {"", "__main__"} == LAYERS.keys()


def test_a_package_imports_what_is_below_it() -> None:
    """Packages below it in the table; `__main__` is `cli.py`."""
    wrong = [
        f"{module} imports {imported}"
        for module, imported in imports()
        if (package := package_of(module)) not in ("", "__main__", package_of(imported))
        and LAYERS[package_of(imported)] >= LAYERS[package]
    ]
    assert wrong == []


def test_papers_are_imported_by_none_and_stand_alone() -> None:
    """The laboratory is removable."""
    wrong = [
        f"{module} imports {imported}"
        for module, imported in imports()
        if imported.startswith(PAPERS) and module.split(".")[:4] != imported.split(".")[:4]
    ]
    assert wrong == []
    assert sum(module.startswith(PAPERS) for module in FILES) > 10
