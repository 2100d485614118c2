"""DDP runs of two processes on the CPU, started once for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from module_files import load

SCRIPT = Path(__file__).with_name("two_ranks.py")
script = load(SCRIPT)


@pytest.fixture(scope="module")
def llama(tiny_llama) -> str:
    return tiny_llama(script.shared.LETTERS)


@pytest.fixture(scope="module")
def seen(llama: str, run_ranks) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT, llama)


@pytest.mark.parametrize("form", script.FORMS)
def test_two_ranks_learn_what_one_learns_from_both_batches(seen, llama: str, form: str) -> None:
    expected = script.tune(llama, 1, script.shared.Share(), **script.FORMS[form])
    assert expected["error"] == ""
    moved = [abs(x) for n, v in expected["learned"].items() if "lora_B" in n for x in v]
    assert max(moved) > 1e-3  # it did learn
    for rank in seen:
        assert rank[form]["error"] == ""
        assert rank[form]["steps"] == expected["steps"]
        for name, values in expected["learned"].items():
            assert rank[form]["learned"][name] == pytest.approx(values, abs=1e-5), name
        for key in ("reward/total", "reward/total_std", "reward/share", "reward/fail_rate"):
            assert rank[form]["metrics"][key] == pytest.approx(expected["metrics"][key], abs=1e-6)


def test_an_exception_on_one_rank_ends_both_at_once(seen) -> None:
    assert seen[1]["broken"]["error"] == "ValueError: no scores"
    assert seen[0]["broken"]["error"] == "RuntimeError: rank 1 failed with ValueError: no scores"
    assert all(rank["broken"]["steps"] == 1 for rank in seen)


def test_a_rank_without_rewards_continues_if_the_other_has_some(seen) -> None:
    for rank in seen:
        assert rank["unknown"]["error"] == ""
        assert rank["unknown"]["steps"] == script.STEPS
