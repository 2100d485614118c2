"""`ctrlreward compare`: which system is better, against sums over all flips of signs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ctrlreward.cli import main
from ctrlreward.functional.sequential import two_sided_p_value
from ctrlreward.runs.compare import _DECLARED
from ctrlreward.scorers import (
    Accuracy,
    Distinct,
    Perplexity,
    Repetition,
    Similarity,
    ctrleval,
    lexicon,
)

rng = np.random.default_rng(3)
ITEMS = [f"prompt {i}" for i in range(10)]
BASE = rng.normal(size=10).round(3)
SYSTEMS = {
    "A": BASE + rng.normal(0.6, 0.3, 10).round(3),
    "B": BASE,
    "C": BASE + rng.normal(0.0, 0.3, 10).round(3),
}


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(*names: str, key: str = "prompt") -> list[dict[str, Any]]:
    """Rows of the systems: a score, one where lower is better, a text and a number that is none."""
    return [
        {
            "system": name,
            key: item,
            "output": "a",
            "seed": i,
            "quality": v,
            "repetition": -v,
            "note": "x",
        }
        for name in names
        for i, (item, v) in enumerate(zip(ITEMS, SYSTEMS[name].tolist(), strict=True))
    ]


def write(name: str, records: Sequence[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def compared(*arguments: str) -> dict[str, dict[str, Any]]:
    main(["compare", *arguments, "--output", "out.json"])
    return {each["score"]: each for each in json.loads(Path("out.json").read_text())["scores"]}


def flips(differences: Sequence[float]) -> float:
    """Two-sided p-value over all patterns of signs."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    sums = signs @ np.asarray(differences)
    return min(1.0, 2 * (sums >= abs(np.sum(differences)) - 1e-9).mean())


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0]), min_size=1, max_size=9))
def test_two_sided_p_values(differences: list[float]) -> None:
    assert two_sided_p_value(differences) == pytest.approx(flips(differences))


def test_two_systems_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    write("s.jsonl", rows("A", "B"))
    found = compared("s.jsonl", "--by", "system")
    assert list(found) == ["quality", "repetition"]
    differences = SYSTEMS["A"] - SYSTEMS["B"]
    interval = stats.bootstrap((differences,), np.mean, random_state=0).confidence_interval
    for name, sign in (("quality", 1), ("repetition", -1)):
        pair = found[name]
        assert pair["difference"] == pytest.approx(sign * differences.mean())
        assert pair["p_value"] == pytest.approx(flips(differences), rel=0.1)
        ends = sorted([sign * pair["low"], sign * pair["high"]])
        assert ends == pytest.approx(list(interval), abs=0.15)
        assert (found[name]["items"], found[name]["failed"]) == (10, 0)
    assert (found["quality"]["mode"], found["repetition"]["mode"]) == (None, "min")
    printed = capsys.readouterr().out
    assert "A is higher than B in quality by" in printed
    assert "A is better than B in repetition by" in printed


def test_directions_are_those_of_the_scorers() -> None:
    classes: tuple[Any, ...] = (Perplexity, Distinct, Repetition, Accuracy, Similarity)
    tables = [*(each.specs for each in classes), lexicon.SPECS, ctrleval.SPECS]
    specs: dict[str, Any] = {name: spec for each in tables for name, spec in each.items()}
    modes = {name: spec.mode for name, spec in specs.items()}
    assert modes | {"gm": "max"} == _DECLARED


def test_order_failures_repeats_and_items_of_one_system() -> None:
    """Items are found by their prompt, and count once; a failed one is left out and counted."""
    first, second = rows("A"), rows("B")
    first[3]["quality"] = None
    first += [{**first[0], "quality": first[0]["quality"] + 2}, {**first[1], "prompt": "other"}]
    write("s.jsonl", [*second[::-1], *first])
    found = compared("s.jsonl", "--by", "system")["quality"]
    differences = np.delete(SYSTEMS["B"] - SYSTEMS["A"], 3)
    differences[0] -= 1.0
    assert found["difference"] == pytest.approx(differences.mean())
    assert (found["items"], found["failed"]) == (9, 1)


def failing(*failed: int, repeats: int = 1) -> dict[str, Any]:
    """Compare A, better by 1 where its output of this number has a score, with B."""
    records = [
        {"system": name, "prompt": f"p {i}", "reward": None if k in failed and name == "A" else v}
        for i in range(20)
        for name, v in (("A", 5.0 + i / 100), ("B", 4.0))
        for k in [20 * j + i for j in range(repeats)]
    ]
    write("s.jsonl", records)
    return compared("s.jsonl", "--by", "system")["reward"]


def test_a_winner_that_fails_more_often_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The p-value of failures is McNemar's: of a binomial over the items in which one failed."""
    found = failing(*range(10))
    assert (found["items"], found["failed"], found["fail_rates"]) == (10, 10, {"A": 0.5, "B": 0.0})
    assert found["fail_p_value"] == pytest.approx(stats.binomtest(10, 10).pvalue, rel=0.01)
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert "A is better than B in reward by 1" in verdict
    assert "A failed on 50 %, B on 0 % (p = 0.002), so neither is better" in verdict
    found = failing(3)
    assert found["fail_p_value"] == 1.0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert "A is better than B" in verdict
    assert "A failed on 5 %, B on 0 %" in verdict
    assert "neither" not in verdict
    found = failing(*range(20), repeats=2)  # one of two outputs of each item
    assert (found["items"], found["failed"], found["fail_rates"]["A"]) == (20, 0, 0.5)
    assert "so neither is better" in capsys.readouterr().out
    failing()
    assert "failed on" not in capsys.readouterr().out


def test_two_of_three_systems(fails: Callable[..., str]) -> None:
    write("s.jsonl", rows("A", "B", "C"))
    found = compared("s.jsonl", "--by=system", "--systems", "C", "A")["quality"]
    assert list(found["means"]) == ["C", "A"]
    assert found["difference"] == pytest.approx((SYSTEMS["C"] - SYSTEMS["A"]).mean())
    write("B.jsonl", rows("B"))
    write("A.jsonl", rows("A"))
    found = compared("B.jsonl", "A.jsonl", "--by=system")["quality"]  # of both files
    assert found["difference"] == pytest.approx((SYSTEMS["B"] - SYSTEMS["A"]).mean())
    assert "--systems" in fails("compare", "s.jsonl", "--by", "system")  # which two?
    assert "--systems" in fails("compare", "s.jsonl", "--by=system", "--systems", "A", "D")
    assert "'D'" in fails("compare", "B.jsonl", "A.jsonl", "--by=system", "--systems", "A", "D")


@pytest.mark.parametrize(("key", "option"), [("prompt", ""), ("id", ""), ("q", "q")])
def test_two_files_of_any_items(key: str, option: str) -> None:
    """By a known column, or by the one that is named."""
    write("A.jsonl", rows("A", key=key))
    write("B.jsonl", rows("B", key=key)[::-1])
    found = compared("A.jsonl", "B.jsonl", *(["--id", option] if option else []))
    assert list(found["quality"]["means"]) == ["A", "B"]
    assert found["quality"]["difference"] == pytest.approx((SYSTEMS["A"] - SYSTEMS["B"]).mean())


def test_labels_are_no_items(capsys: pytest.CaptureFixture[str]) -> None:
    """Two values are half of the rows of such files."""
    for name in "AB":
        values = SYSTEMS[name].tolist()[:4]
        write(f"{name}.jsonl", [{"q": i % 2, "tone": "ab"[i % 2], "quality": v}
                                for i, v in enumerate(values)])  # fmt: skip
    found = compared("A.jsonl", "B.jsonl", "--metrics", "quality")["quality"]
    assert found["items"] == 4
    assert "4 items, paired by position" in capsys.readouterr().out.splitlines()[0]


def test_items_without_a_name_are_paired_by_position() -> None:
    for name in "AB":
        write(f"{name}.jsonl", [{"quality": value} for value in SYSTEMS[name].tolist()])
    found = compared("A.jsonl", "B.jsonl")["quality"]
    assert found["difference"] == pytest.approx((SYSTEMS["A"] - SYSTEMS["B"]).mean())


def test_one_value_of_a_whole_system_is_not_tested(capsys: pytest.CaptureFixture[str]) -> None:
    records = [row | {"distinct_2": 0.4 if row["system"] == "A" else 0.7} for row in rows("A", "B")]
    write("s.jsonl", records)
    pair = compared("s.jsonl", "--by", "system", "--metrics", "distinct*")["distinct_2"]
    assert pair["difference"] == pytest.approx(-0.3)
    assert pair["p_value"] is None
    assert "better" not in capsys.readouterr().out
    again = ("--metrics", "distinct*", "--metrics", "quality")
    assert {"distinct_2", "quality"} <= compared("s.jsonl", "--by", "system", *again).keys()


def test_stored_samples_of_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for name in "AB":
        folder = Path("runs", name)
        (folder / "samples/score").mkdir(parents=True)
        rows_ = [{"step": step, "loss": 1.0} for step in (1, 2)]  # not the scores of the texts
        write(f"runs/{name}/metrics.jsonl", rows_)
        (folder / "summary.json").write_text('{"directions": {"score/worth": "min"}}')
        for step, shift in ((1, 7.0), (2, 0.0)):
            scored = [
                {"text": f"{item} {name}", "prefix": item, "scores": {"worth": value + shift}}
                for item, value in zip(ITEMS, SYSTEMS[name].tolist(), strict=True)
            ]
            write(f"runs/{name}/samples/score/step={step:06d}.jsonl", scored)
    found = compared("runs/A", "runs/B")["score/worth"]
    assert found["mode"] == "min"
    expected = (SYSTEMS["A"] - SYSTEMS["B"]).mean()
    assert found["difference"] == pytest.approx(expected)
    assert "B is better than A in score/worth by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("s.jsonl", "--by"),
        ("s.jsonl --by sytem", "'sytem'"),
        ("s.jsonl --by system --metrics nothing", "nothing"),
        ("s.jsonl --by system --id key", "key"),
        ("s.jsonl other.jsonl --id prompt", "prompt"),
        ("s.jsonl few.jsonl", "--id"),
        ("texts.jsonl --by system", "ctrlreward score"),
        ("table.json table.json", "table.json"),
    ],
)
def test_mistakes(arguments: str, named: str, fails: Callable[..., str]) -> None:
    write("s.jsonl", rows("A", "B"))
    write("few.jsonl", [{"quality": 1.0}] * 3)
    write("other.jsonl", [{"prompt": "other", "quality": 1.0}] * 3)
    texts = [
        {"system": row["system"], "prompt": row["prompt"], "output": "a"} for row in rows("A", "B")
    ]
    write("texts.jsonl", texts)
    Path("table.json").write_text("{}")
    assert named in fails("compare", *arguments.split())
