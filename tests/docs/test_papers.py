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


SECTIONS = ("CTRLEval", "Textual transfer", "CTC", "Reproduction of controlled generation")
# What the data of the papers do not state, and the issues and the published code speak of.
BESIDES = {
    "CTRLEval": "eqs. 2 to 4, 7, 14 to 16, Table 8, Figures 2 to 7",
    "Textual transfer": "eq. 1",
    "CTC": "eqs. 2 to 6, Tables F.5, F.6, Figure 7",
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


def mentioned(section: str) -> set[tuple[str, str]]:
    """Return the numbers that have a row in a section."""
    return set().union(*(numbered(row[0]) for row in rows_of(section)))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_has_a_state_and_a_test(section: str) -> None:
    rows = rows_of(section)
    assert rows
    assert all(len(row) == 4 and row[0] and row[2] and row[3] for row in rows)
    assert not numbered(BESIDES.get(section, "")) - mentioned(section), "numbers without a row"


def stated(papers_dir: Path) -> dict[str, str]:
    """Return what the data of the papers say of each, with ranges in words."""
    overview = (papers_dir / "README.md").read_text(encoding="utf-8")
    texts = {name: overview.partition(f"{name} (")[2].partition(")")[0] for name in SECTIONS}
    with open(papers_dir / "published_correlations.csv", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            texts[row["source"].partition(" ")[0]] += "; " + row["source"]
    study = json.loads((papers_dir / "reproduction_tables.json").read_text(encoding="utf-8"))
    texts["Reproduction of controlled generation"] = study["source"].replace("-", "–")
    facts = (papers_dir / "textual_transfer.md").read_text(encoding="utf-8")
    texts["Textual transfer"] = overview.partition("| textual_transfer.md |")[2] + facts
    return {section: text.replace("–", " to ") for section, text in texts.items()}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_number_that_the_data_state_has_a_row(section: str, papers_dir: Path) -> None:
    found = numbered(stated(papers_dir)[section])
    assert found
    assert not found - mentioned(section), "numbers without a row"
    known = found | numbered(BESIDES.get(section, ""))
    assert not mentioned(section) - known, "rows of numbers that no source states"
