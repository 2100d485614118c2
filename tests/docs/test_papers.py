"""Every file, function and test that docs/papers.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.\w+(?::[\w.]+)?)`", PAGE)) - {"file.py:name"})
AT_THE_TOP = {"recipes", "callbacks", "configs", "tests", "docs"}


def defined(path: Path) -> set[str]:
    """Return the functions, classes, methods as Class.method, and constants of a module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_all_of_it_exists() -> None:
    for named in NAMED:
        file, _, name = named.partition(":")
        path = ROOT / file if file.split("/")[0] in AT_THE_TOP else ROOT / "ctrlreward" / file
        assert path.is_file(), f"{path} is absent"
        assert not name or name in defined(path), f"{file} has no {name}"
