"""Each fault that docs/troubleshooting.md describes has tests that cause it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Row of the page → addresses of tests, some of which are soak tests.
FAULTS: dict[str, tuple[str, ...]] = {
    # in a run
    "SIGKILL": (
        "tests/test_killed_demo.py",
        "tests/callbacks/test_interruptions.py",
        "tests/huggingface/test_killed.py",
        "tests/callbacks/test_wandb.py -k offline",
    ),
    "SIGTERM": ("tests/callbacks/test_interruptions.py",),
    "full disk, damaged file": (
        "tests/test_files.py -k disk or cut_anywhere",
        "tests/callbacks/test_faults.py -k disk or cut_off",
        "tests/corpus/test_score.py -k full_disk or cut_off",
    ),
    "a rank dies, or its scorer raises": (
        "tests/callbacks/test_faults.py -k rank_ends",
        "tests/callbacks/test_distributed.py -k failing_scorer",
    ),
    "W&B without a key or connection": (  # the connection by hand: WANDB_BASE_URL=http://127.0.0.1:9
        "tests/callbacks/test_faults.py -k biases",
        "tests/test_cli.py -k one_line",
    ),
    # in a model or scorer
    "damaged or missing weights": (
        "tests/weights/test_damage.py -k several_files or gguf or finite or larger or padding",
        "tests/weights/test_completeness.py",
        "tests/weights/test_sources.py -k wheel or index",
        "tests/weights/test_sources.py -k two_processes or failed_build",
        "tests/recipes/test_data_sets.py -k published_one",
    ),
    "NaN for a sample": (
        "tests/scorers/test_base.py -k failed_samples",
        "tests/policy/test_faults.py -k extreme or size or constant",
    ),
    "NaN for all samples": (
        "tests/selection/test_rules.py -k nan",
        "tests/callbacks/test_generation.py -k valid_score",
        "tests/callbacks/test_pareto.py -k nan",
        "tests/policy/test_tuner.py -k fail",
    ),
    "wrong shape, type or range": ("tests/scorers/test_base.py -k is_checked",),
    "an exception": ("tests/scorers/test_base.py -k exception_of_a_scorer",),
    "a loss that is NaN": ("tests/policy/test_faults.py -k finite",),
    # bad texts and files
    "any characters, any length": (
        "tests/scorers/test_hostile_input.py -k corpus or any_text or length",
        "tests/scorers/test_hostile_input.py -k empty or label or braces",
        "tests/scorers/test_base.py -k rows_after",
    ),
    "malformed or deeply nested JSON, YAML": (
        "tests/test_strangers_files.py -k parser or readers or unfinished or infinity or configs",
    ),
    "pickles, code of a model, Python in YAML": (
        "tests/test_strangers_files.py -k checkpoint or model or pickled or tags",
        "tests/test_strangers_files.py -k members or names",
    ),
    "formulas in CSV, HTML in a report": (
        "tests/test_strangers_files.py -k cell",
        "tests/runs/test_report.py -k hostile",
    ),
    # at the server
    "no token, for other machines": ("tests/serving/test_serve.py -k token",),
    "huge or malformed requests": (
        "tests/serving/test_faults.py -k long_bodies or malformed or echoes",
        "tests/serving/test_fuzzed.py -k fuzzer or json",
    ),
    "more requests than may wait": (
        "tests/serving/test_faults.py -k full_queue or burst",
        "tests/serving/test_batcher.py -k refused",
    ),
    "a client hangs up": ("tests/serving/test_faults.py -k hang_up",),
    "a sample that makes a scorer raise": ("tests/serving/test_batcher.py -k alone",),
    "a scorer that hangs": ("tests/serving/test_serve.py -k scorer_hangs",),
}


@pytest.mark.parametrize("address", sorted({test for tests in FAULTS.values() for test in tests}))
def test_the_test_of_a_row_exists(address: str) -> None:
    file, _, words = address.partition(" -k ")
    names = re.findall(r"^def (test_\w+)", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert names
    for word in words.split(" or ") if words else ():
        assert any(word in name for name in names), (word, names)


def test_each_row_has_a_test() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    faults = page.partition("## What happens after a fault\n")[2]
    rows = re.findall(r"^\| (.+?) \|", faults, re.MULTILINE)
    heads = {"fault in a run", "fault in a model or scorer", "bad text or file"}
    assert sorted({*rows} - heads - {"fault at the server"}) == sorted(FAULTS)
