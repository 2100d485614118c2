"""docs/papers.md: all that it names exists, and every number of the four papers has a row."""

from __future__ import annotations

import ast
import csv
import json
import re
from pathlib import Path

import pytest

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


# The numbers of each paper as its section of the page is headed. CTRLEval's and CTC's are those
# that the published figures, the plan of the project and the page itself speak of.
NUMBERS = {
    "CTRLEval": {
        "eq": "7 14 15 16",
        "Table": "3 4 5 6 7 8",
        "Figure": "2 3 4 5",
    },
    "Textual transfer": {
        "eq": "1 2 3 4 5 6 7",
        "Table": "1 2 3 4 5 6",
        "Figure": "1",
    },
    "CTC": {
        "eq": "2 3 4 5 6",
        "Table": "1 2 3 D.1 D.2 D.3 D.4 E.1 F.1 F.2 F.3 F.4 F.5 F.6",
        "Figure": "7",
    },
    "Reproduction of controlled generation": {"Table": "1 2 3 4"},
}
NUMBER = r"(?:[A-F]\.)?\d+"
MENTION = re.compile(rf"\b(eq|Table|Figure)s?\.? ({NUMBER}(?:(?:, | and | to ){NUMBER})*)")


def numbered(text: str) -> set[tuple[str, str]]:
    """Return what a text mentions: `Tables D.1 to D.3` is three tables."""
    found = set()
    for kind, numbers in MENTION.findall(text):
        for part in re.split(", | and ", numbers):
            first, _, last = part.partition(" to ")
            appendix, _, start = first.rpartition(".")
            end = int((last or first).rpartition(".")[2])
            dot = "." if appendix else ""
            found |= {(kind, f"{appendix}{dot}{i}") for i in range(int(start), end + 1)}
    return found


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of a section's table, without header and rule."""
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[2:]]


def test_mentions_are_read_one_by_one() -> None:
    text = "Tables 2, E.1, F.3 to F.5; eqs. 5 and 6; eq. 14: Figure 1"
    tables = {("Table", number) for number in ("2", "E.1", "F.3", "F.4", "F.5")}
    assert numbered(text) == tables | {("eq", "5"), ("eq", "6"), ("eq", "14"), ("Figure", "1")}


@pytest.mark.parametrize("section", NUMBERS)
def test_every_number_of_a_paper_has_a_row_with_a_state(section: str) -> None:
    rows = rows_of(section)
    assert all(len(row) == 4 and row[0] and row[2] and row[3] for row in rows)
    listed = {(kind, n) for kind, numbers in NUMBERS[section].items() for n in numbers.split()}
    mentioned = set().union(*(numbered(row[0]) for row in rows))
    assert not listed - mentioned, "numbers without a row"
    assert not mentioned - listed, "rows of numbers that the list lacks"


def test_the_list_has_what_the_sources_state(papers_dir: Path) -> None:
    with open(papers_dir / "published_correlations.csv", encoding="utf-8", newline="") as lines:
        sources = {row["source"] for row in csv.DictReader(lines)}
    facts = (papers_dir / "textual_transfer.md").read_text(encoding="utf-8")
    study = json.loads((papers_dir / "reproduction_tables.json").read_text(encoding="utf-8"))
    stated = {
        "CTRLEval": " ".join(source for source in sources if source.startswith("CTRLEval")),
        "CTC": " ".join(source for source in sources if source.startswith("CTC")),
        "Textual transfer": facts,
        "Reproduction of controlled generation": study["source"].replace("-", " to "),
    }
    for section, text in stated.items():
        listed = {(kind, n) for kind, numbers in NUMBERS[section].items() for n in numbers.split()}
        assert numbered(text)
        assert numbered(text) <= listed
