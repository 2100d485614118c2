"""The table of layers in docs/architecture.md, enforced on every import, also in functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAPERS = "ctrlreward.recipes.papers"
AT_THE_TOP = ("callbacks", "recipes", "configs")  # of the repository


class Import(NamedTuple):
    line: int
    module: str  # the module of the package that is imported, or that has the imported name


def layers() -> dict[str, tuple[int, int]]:
    """Package → its layer in the page's table, and its place from the bottom of the table."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| `(.+?)` \|", page, re.M)
    assert rows == sorted(rows, key=lambda row: row[0], reverse=True)
    return {
        package.removesuffix("/").removesuffix(".py"): (int(layer), place)
        for place, (layer, package) in enumerate(reversed(rows))
    }


LAYERS = layers()


def sources() -> dict[str, Path]:
    """Module → its file, wherever that is in the repository."""
    bases = [(ROOT / "ctrlreward", ROOT / "ctrlreward")]
    bases += [(ROOT / package, ROOT) for package in AT_THE_TOP]
    return {
        ".".join(("ctrlreward", *path.relative_to(base).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for folder, base in bases
        for path in sorted(folder.rglob("*.py"))
    }


FILES = sources()


def package_of(module: str) -> str:
    """`ctrlreward.scorers.base` → `scorers`; the package itself is its interface."""
    return module.split(".")[1] if "." in module else ""


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[Import]:
    """The imports from ctrlreward in a module, also in its functions, and those for types."""
    for node in ast.walk(tree_of(module)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("ctrlreward."):
                yield Import(node.lineno, name if name in FILES else name.rpartition(".")[0])


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in FILES} - {"", "__main__"} == LAYERS.keys()


def test_a_package_imports_what_is_below_it() -> None:
    """Packages below it in the table; `__main__` is `cli.py`."""
    wrong = []
    for module, path in FILES.items():
        package = package_of(module)
        for line, imported in imports(module):
            other = package_of(imported)
            below = package not in ("", "__main__") and LAYERS[other] >= LAYERS[package]
            if other != package and below:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert wrong == []


def test_only_papers_import_papers() -> None:
    """The laboratory is removable."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for module, path in FILES.items()
        if not module.startswith(PAPERS)
        for line, imported in imports(module)
        if imported.startswith(PAPERS)
    ]
    wrong += [
        f"{path.relative_to(ROOT)}:{node.lineno} names {node.value}"
        for module, path in FILES.items()
        if not module.startswith(PAPERS)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Constant)
        and re.fullmatch(r"(ctrlreward\.)?recipes\.papers[\w.]*", str(node.value))
    ]
    assert wrong == []
    papers = [module for module in FILES if module.startswith(f"{PAPERS}.")]
    assert len(papers) > 10
    for module in papers:  # each stands alone
        others = {imported.split(".")[3] for _, imported in imports(module) if PAPERS in imported}
        assert others <= {module.split(".")[3]}, module
