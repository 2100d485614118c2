"""Finds assertions that can't fail: `python tests/vacuous_assertions.py FOLDER...`.

These are an assertion on a constant, on a tuple, on a comparison of equals, on `x or True`, and
`pytest.raises` or `pytest.warns` around nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

RAISES = re.compile(r"(pytest\.)?(raises|warns|deprecated_call)\(")


def is_constant(test: ast.expr) -> bool:
    """Return whether an expression has one value, or is true or false whatever its names are."""
    match test:
        case ast.Constant() | ast.JoinedStr() | ast.Lambda():
            return True
        case ast.Tuple() | ast.List() | ast.Set():  # its length is known
            return not any(isinstance(each, ast.Starred) for each in test.elts)
        case ast.Dict():
            return None not in test.keys
        case ast.UnaryOp(op=ast.Not()):
            return is_constant(test.operand)
        case ast.BoolOp():  # `x or 1`, `x and 0`
            decides = isinstance(test.op, ast.Or)
            return all(map(is_constant, test.values)) or any(
                isinstance(each, ast.Constant) and bool(each.value) is decides
                for each in test.values
            )
        case ast.Compare():
            sides = [test.left, *test.comparators]
            if all(map(is_literal, sides)):
                return True
            pairs = zip(sides, test.ops, sides[1:], strict=False)
            return any(
                isinstance(op, ast.Eq | ast.Is | ast.LtE | ast.GtE | ast.In)
                and ast.dump(left) == ast.dump(right)
                and not any(isinstance(node, ast.Call) for node in ast.walk(left))
                for left, op, right in pairs
            )
    return False


def is_literal(side: ast.expr) -> bool:
    """Return whether an expression has no name."""
    return not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(side))


def is_empty(body: list[ast.stmt]) -> bool:
    """Return whether statements do nothing."""
    return all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in body
    )


def find_vacuous(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each assertion that can't fail."""
    for node in ast.walk(ast.parse(source)):
        vacuous = (isinstance(node, ast.Assert) and is_constant(node.test)) or (
            isinstance(node, ast.With | ast.AsyncWith)
            and is_empty(node.body)
            and all(RAISES.match(ast.unparse(each)) for each in node.items)
        )
        if vacuous:
            yield node.lineno, ast.unparse(node).splitlines()[0]


def main(folders: list[str]) -> int:
    """Print each finding; return the number of findings."""
    count = 0
    for file in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
        for line, text in find_vacuous(file.read_text(encoding="utf-8")):
            print(f"{file}:{line}: can't fail: {text}")
            count += 1
    return count


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
