"""Wordings that our messages, docstrings, comments and docs no longer use, and what replaces them.

The list has only wordings that are never right here, so it needs no exceptions.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

INSTEAD = {
    r": give\b": "`must be …, got …`, or a sentence with an imperative",
    r"\b(those|that) of\b": "the noun, or a genitive",
    r"(?<!there )\b(is|are) no (?!(longer|more|less|better|worse|larger|smaller)\b)": "is not a",
    r"\bof (its|their|your|our|one's|the user's) own\b": "its own …, separate",
    r"\btoo[.,;:)]": "also, as well",
    r"\b(go|goes|went) on\b": "continue",
    r"\bas (it|they) (was|were)\b": "unchanged",
    r"\bin so far as\b|\binasmuch\b|\bwhereof\b|\bthereof\b|\bthereby\b": "a shorter sentence",
    r"\blaborator(y|ies)\b": "the name of the package",
    r"\b(makes?|made) (one|two|three|\d+) steps?\b": "run … steps",
}

ANY = re.compile("|".join(INSTEAD), re.IGNORECASE)

# In an error message the fix is a sentence, "…. Use x=1.", not the end of one, "…: use x=1".
FIX = re.compile(
    r"[:;] (add|call|choose|define|delete|drop|give|install|leave|name|pass|remove|rename|return"
    r"|run|set|use|wait|write) "
)


def find_old(text: str) -> list[str]:
    """Return each old wording in a text with a few words around it and its replacement."""
    text = " ".join(text.split())
    if not ANY.search(text):  # nearly always
        return []
    return [
        f"…{text[max(0, found.start() - 30) : found.end() + 20]}…  Write: {instead}"
        for wording, instead in INSTEAD.items()
        for found in re.finditer(wording, text, re.IGNORECASE)
    ]


def python_texts(source: str) -> Iterator[str]:
    """Yield the strings of a module, with `{}` for the values of f-strings, and its comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(map(str, parts))
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE):
            yield " ".join(block)
            block.clear()


def raised(source: str) -> Iterator[str]:
    """Yield the strings of a module's `raise` statements, with `{}` for the values of f-strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            yield from python_texts(ast.unparse(node))


def prose(markdown: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", markdown, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("folder", ["ctrlreward", "callbacks", "recipes"])
def test_the_strings_and_comments_of_the_library_have_no_old_wording(folder: str) -> None:
    old = {
        f"{path.relative_to(ROOT)}: {found}"
        for path in (ROOT / folder).rglob("*.py")
        for text in python_texts(path.read_text(encoding="utf-8"))
        for found in find_old(text)
    }

    assert not old, "\n".join(sorted(old))


@pytest.mark.parametrize("folder", ["ctrlreward", "callbacks", "recipes"])
def test_the_fix_of_an_error_is_a_sentence(folder: str) -> None:
    joined = {
        f"{path.relative_to(ROOT)}: {message}"
        for path in (ROOT / folder).rglob("*.py")
        for message in raised(path.read_text(encoding="utf-8"))
        if FIX.search(message)
    }

    assert not joined, "\n".join(sorted(joined))


def test_the_pages_have_no_old_wording() -> None:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

    old = [
        f"{page.relative_to(ROOT)}: {found}"
        for page in pages
        for found in find_old(prose(page.read_text(encoding="utf-8")))
    ]

    assert not old, "\n".join(old)


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError(f"mode = {mode!r}: give one of max, min")',
        'raise ValueError(f"mode = {mode!r}: "\n    "give one of max, min")',
        '"""Return the weights and those\nof the adapter."""',
        "x = 1  # a folder of its own",
        "# The rewards, and their means,\n# too.\nx = 1",
    ],
)
def test_an_old_wording_is_found_in_messages_docstrings_and_comments(source: str) -> None:
    assert any(find_old(text) for text in python_texts(source))


def test_a_fix_within_a_sentence_is_found() -> None:
    (message, *_) = raised('raise ValueError(f"{x} is empty: " "write a text into it")')

    assert FIX.search(message)


@pytest.mark.parametrize(
    "text",
    [
        "there is no column 'label', only 'text'",
        "the loss is no longer finite",
        "mode must be 'max' or 'min', got 'up'",
        "too many rows",
        "given: x",
    ],
)
def test_current_wordings_are_accepted(text: str) -> None:
    assert not find_old(text)
