from __future__ import annotations

import runpy
from pathlib import Path


def test_the_tests_in_the_diff_pass(changed: Path) -> None:
    tests = runpy.run_path(str(changed / "tests" / "scorers" / "test_readability.py"))
    tests["test_equals_the_formula"]()
    tests["test_an_empty_text_is_nan"]()
