"""The rules of docs/architecture.md that can be read off the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the lowest to the highest; a package imports from itself and from packages before it only.
LAYERS = [
    ["arguments", "extras", "ranks", "files"],
    ["samples", "progress"],
    ["items"],
    ["text"],
    ["functional"],
    ["tables"],
    ["processor"],
    ["weights"],
    ["data"],
    ["engine"],
    ["models"],
    ["scorers"],
    ["placement", "plots", "completion"],
    ["reward", "held_out"],
    ["selection", "serving", "lightning_package", "run_folder", "probing", "credit", "candidates"],
    ["callbacks"],
    ["policy", "adapters", "huggingface"],
    ["lightning"],
    ["configs"],
    ["commands"],
    ["cli"],
    ["__main__"],
    ["recipes"],
]
LAYER = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}

# The interface of the whole, which may name any package lazily.
INTERFACES = {"__init__"}

# Reproductions of papers; `cli` finds its commands there by name.
PAPERS = ROOT / "recipes" / "papers"

AT_THE_TOP = ("callbacks", "recipes", "configs")  # of the repository


def sources() -> Iterator[tuple[str, Path]]:
    """Package and path of each file, wherever it stands in the repository."""
    for path in sorted((ROOT / "ctrlreward").rglob("*.py")):
        yield path.relative_to(ROOT / "ctrlreward").parts[0].removesuffix(".py"), path
    for package in AT_THE_TOP:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield package, path


FILES = list(sources())


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each import from ctrlreward, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("ctrlreward."):
                yield node.lineno, name


def test_every_package_has_a_layer() -> None:
    assert {package for package, _ in FILES} - INTERFACES == set(LAYER)


def test_no_import_goes_upward_or_sideways() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for package, path in FILES
        if package not in INTERFACES
        for line, name in imports(path)
        if (target := name.split(".")[1]) != package
        and LAYER.get(target, len(LAYERS)) >= LAYER[package]
    ]
    assert wrong == []


def test_only_papers_import_papers() -> None:
    """Nor does anything else name them, as a string that is imported later; `cli` alone may."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} names {node.value}"
        for package, path in FILES
        if not path.is_relative_to(PAPERS) and package != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and re.fullmatch(r"(ctrlreward\.)?recipes\.papers[\w.]*", str(node.value))
    ]
    wrong += [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for _, path in FILES
        if not path.is_relative_to(PAPERS)
        for line, name in imports(path)
        if name.startswith("ctrlreward.recipes.papers")
    ]
    assert wrong == []
    assert len([path for _, path in FILES if path.is_relative_to(PAPERS)]) > 30


def module_graph() -> dict[str, set[str]]:
    """Module → modules of the package that it imports when it is loaded."""
    names = {}
    for package, path in FILES:
        base = ROOT if package in AT_THE_TOP else ROOT / "ctrlreward"
        parts = path.relative_to(base).with_suffix("").parts
        names[".".join(("ctrlreward", *parts)).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        targets: set[str] = set()
        for node in tree.body:  # imports inside functions are made later
            if isinstance(node, ast.ImportFrom) and node.module:
                submodules = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= {t for t in submodules if t in names} or {node.module}
            elif isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
        graph[name] = (targets & names.keys()) - {name}
    return graph


def test_no_module_imports_itself_through_others() -> None:
    graph, done = module_graph(), set[str]()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle of imports: {' → '.join((*path, name))}"
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
