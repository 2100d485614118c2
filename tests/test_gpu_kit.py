"""`make gpu` on the second device, with tiny models."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import gpu

    return gpu


def kit(gpu: Any, folder: Path, **given: Any) -> Any:
    options = {"device": "cpu", "size": "tiny", "weights": None, "scorers": None, "seconds": 60}
    return gpu.Kit(Namespace(**options | given, output=folder / "out"), folder)


def test_runs_without_a_card(run_script: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("torch", minversion="2.13", reason="devices in Python need torch 2.13")
    arguments = ("--device", "second:0", "--size", "tiny", "--output", tmp_path)
    parts = ("--parts", "scorers", "memory", "steps", "--scorers", "Similarity", "Judge")
    run_script(BENCHMARKS / "gpu.py", *arguments, *parts, timeout=240)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["card"] is None
    found = record["parts"]
    assert {name: part["status"] for name, part in found.items()} == dict.fromkeys(
        ("scorers", "memory", "steps"), "passed"
    )
    judge, similarity = found["scorers"]["rows"]
    assert (judge["case"], similarity["case"]) == ("Judge", "Similarity")
    for row in (judge, similarity):
        assert row["difference, float32"] < 1e-6 < row["difference, bfloat16"]
        assert row["MiB held, float32"] > row["MiB left, float32"] == 0
    assert [row["times out of memory"] for row in found["memory"]["rows"]] == [1, 1, 1]
    ours, _, theirs = found["steps"]["rows"]
    assert 0 < ours["sampling, s"] < ours["step, s"]
    assert theirs["not run"] == "TRL does not train on second:0"
    table = (tmp_path / "gpu.md").read_text()
    assert "| Similarity |" in table
    assert "No card: second:0" in table


@pytest.mark.parametrize("name", ["llama", "pegasus"])
def test_a_plain_loop_has_the_same_log_probabilities(gpu: Any, tmp_path: Path, name: str) -> None:
    row = gpu.against_a_plain_loop(kit(gpu, tmp_path), name)
    assert row["largest difference of a word"] < 1e-5
    assert row["ratio"] > 0


def test_a_failed_sample_of_one_side_is_a_difference(gpu: Any) -> None:
    assert gpu.difference({"a": [1.0, 202.0]}, {"a": [0.5, 200.0]}) == 0.5
    assert gpu.difference({"a": [1.0, 202.0]}, {"a": [1.0, 200.0]}) == pytest.approx(0.01)
    assert gpu.difference({"a": [float("nan")]}, {"a": [float("nan")]}) == 0
    assert gpu.difference({"a": [float("nan")]}, {"a": [1.0]}) == float("inf")


@pytest.mark.parametrize("name", ["llama", "pegasus", "bart", "encoder"])
def test_a_short_word_is_one_token(name: str, gpu: Any, tmp_path: Path) -> None:
    """Of the large vocabularies, so that texts have as many tokens as with real models."""
    from transformers import AutoTokenizer

    family, _ = gpu.SHAPES[name]
    gpu.save_tokenizer(tmp_path, family, 20_000)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 20_000
    text = " the tea was hot"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert len(ids) == 4
    assert tokenizer.decode(ids) == text
