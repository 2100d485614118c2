"""The rules of docs/architecture.md that can be read off the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the lowest to the highest; a room imports from itself and from rooms before it only.
FLOORS = [
    ["arguments", "columns", "displays", "extras", "ranks", "files"],
    ["samples", "progress", "items"],
    ["text"],
    ["functional"],
    ["processor"],
    ["weights"],
    ["engine"],
    ["models"],
    ["scorers"],
    ["placement", "plots"],
    ["reward"],
    ["selection", "serving", "lightning_package"],
    ["callbacks"],
    ["policy", "adapters"],
    ["lightning"],
    ["recipes", "configs"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}

# The package's own face, which may name any room lazily.
FACES = {"__init__"}


def sources() -> Iterator[tuple[str, Path]]:
    """Room and path of each file of the package, wherever it stands in the repository."""
    for path in sorted((ROOT / "ctrlreward").rglob("*.py")):
        yield path.relative_to(ROOT / "ctrlreward").parts[0].removesuffix(".py"), path
    for room in ("callbacks", "recipes", "configs"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield room, path


FILES = list(sources())


def imported_rooms(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and room of each import from the package."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names = [f"{module}.{a.name}" for a in node.names] if module == "ctrlreward" else []
            names = names or [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("ctrlreward."):
                yield node.lineno, name.split(".")[1]


def test_every_room_has_a_floor() -> None:
    assert {room for room, _ in FILES} - FACES == set(LEVEL)


def test_no_import_goes_upward_or_sideways() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for room, path in FILES
        if room not in FACES
        for line, target in imported_rooms(ast.parse(path.read_text(encoding="utf-8")))
        if target != room and LEVEL.get(target, len(FLOORS)) >= LEVEL[room]
    ]
    assert wrong == []


def module_graph() -> dict[str, set[str]]:
    """Module → modules of the package that it imports when it is loaded."""
    names = {}
    for room, path in FILES:
        base = ROOT if room in ("callbacks", "recipes", "configs") else ROOT / "ctrlreward"
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
