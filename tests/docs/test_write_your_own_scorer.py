from __future__ import annotations

import runpy
from pathlib import Path


def test_the_diff_touches_one_scorer_one_test_and_the_docs(changed: Path) -> None:
    files = {str(file.relative_to(changed)) for file in changed.rglob("*") if file.is_file()}
    assert files == {
        "ctrlreward/scorers/readability.py",
        "docs/scorers.md",
        "tests/scorers/test_readability.py",
    }


def test_the_tests_in_the_diff_pass(changed: Path) -> None:
    tests = runpy.run_path(str(changed / "tests" / "scorers" / "test_readability.py"))
    tests["test_equals_the_formula"]()
    tests["test_an_empty_text_is_nan"]()
