"""How often a reward prefers the chosen text: against counts by hand and by loops."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Share
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.cli import main
from ctrlreward.functional.preferences import pair_accuracy
from ctrlreward.scorers import parts

SCORES = st.one_of(st.integers(-2, 2).map(float), st.just(np.nan))

REWARD = """
def length(completions, prompts, **_):
    return [len(text) - 100 * (prompt == "Reversed") for text, prompt in zip(completions, prompts)]
"""


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


PAIRS: list[dict[str, Any]] = [
    {"prompt": "Tea?", "chosen": "Yes, please.", "rejected": "No.", "subset": "polite"},
    {"prompt": "Tea?", "chosen": "Yes.", "rejected": "Well, no.", "subset": "polite"},
    {"prompt": "Soup?", "chosen": chat("Soup?", "Hot soup."), "rejected": chat("Soup?", "Cold.")},
    {"prompt": "Rain?", "chosen": "Soon.", "rejected": "Never", "subset": "plain"},
]
PAIRS[2]["subset"] = "plain"


@given(st.lists(st.tuples(SCORES, SCORES, st.integers(0, 3)), max_size=12))
def test_counts_are_those_of_a_loop(rows: list[tuple[float, float, int]]) -> None:
    chosen, rejected, clusters = ([row[i] for row in rows] for i in range(3))
    found = pair_accuracy(chosen, rejected, clusters, resamples=50)  # type: ignore[arg-type]
    valid = [(a, b) for a, b, _ in rows if a == a and b == b]
    assert (found.pairs, found.failed) == (len(valid), len(rows) - len(valid))
    if valid:
        assert found.higher.value == pytest.approx(sum(a > b for a, b in valid) / len(valid))
        assert found.ties == pytest.approx(sum(a == b for a, b in valid) / len(valid))
        assert 0 <= found.higher.low <= found.higher.high <= 1
    else:
        assert np.isnan(found.higher.value)


def test_intervals_of_single_pairs_are_wilsons() -> None:
    """Wilson (1927) by hand: 29 of 32 at 95 %."""
    found = pair_accuracy([1.0] * 29 + [0.0] * 3, [0.5] * 32).higher
    z, n, p = 1.959964, 32, 29 / 32
    middle, width = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    expected = [(middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)]
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-5)


def test_clusters_count_as_one() -> None:
    """Ten equal pairs of each of two prompts tell as little as two pairs, one prompt even less."""
    single = pair_accuracy([1.0, 1.0], [0.0, 0.0]).higher
    assert pair_accuracy([1.0] * 20, [0.0] * 20, [0] * 10 + [1] * 10).higher == single
    wide = pair_accuracy([1.0] * 10 + [0.0] * 10, [0.5] * 20, [0] * 10 + [1] * 10).higher
    assert (wide.low, wide.high) == (0.0, 1.0)
    # Wilson's interval of one draw: 1 / (1 + z²) = 0.2065 from the end.
    never = pair_accuracy([0.0] * 8, [1.0] * 8, ["p"] * 8).higher
    assert (never.value, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(1 - 0.2065, abs=1e-4)
    mixed = pair_accuracy([1.0, 1.0, 0.0], [0.5] * 3, ["p"] * 3).higher
    assert mixed.low < 0.25
    assert mixed.high > 0.9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return tmp_path


def measured(*options: str) -> dict[str, Any]:
    main(["meta-eval", "preferences", "pairs.jsonl", "--output", "out.json", *options])
    return json.loads(Path("out.json").read_text())


def test_a_reward_by_subset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = measured("--reward", "rewards.py:length")
    (found,) = figures.values()
    values = {name: each["higher"]["value"] for name, each in found["subsets"].items()}
    assert values == {"all": 0.5, "polite": 0.5, "plain": 0.5}
    assert found["subsets"]["plain"]["ties"] == 0.5
    assert found["mean_of_subsets"] == 0.5
    assert "Intervals: of 3 clusters of pairs." in capsys.readouterr().out


def test_the_prompt_may_be_in_the_messages(folder: Path) -> None:
    rows = [{"chosen": chat("Reversed", "abc"), "rejected": chat("Tea?", "abc")}]
    (folder / "pairs.jsonl").write_text(json.dumps(rows[0]) + "\n")
    figures = measured("--reward", "rewards.py:length", "--pairs.prompt", "null")
    assert figures["reward"]["subsets"]["all"]["higher"]["value"] == 0.0


def test_scorers_and_a_text_that_fails(folder: Path, tiny_causal: Callable[..., str]) -> None:
    rows = [{**PAIRS[0], "rejected": ""}, *PAIRS[1:]]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = tiny_causal("llama")
    figures = measured("--scorers", "Perplexity", f"--scorers.model={model}")
    found = figures["perplexity"]["subsets"]["all"]
    assert (found["pairs"], found["failed"]) == (3, 1)
    # Lower is better, so that the two directions of one score agree.
    perplexity, likelihood = (figures[n]["subsets"] for n in ("perplexity", "log_likelihood"))
    assert perplexity == likelihood


def test_messages_end_with_the_assistant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"chosen": chat("Tea?", "Yes.")[:1], "rejected": "No."}
    (folder / "pairs.jsonl").write_text(json.dumps(bad) + "\n")
    with pytest.raises(SystemExit):
        measured("--reward", "rewards.py:length")
    assert "pairs.jsonl:1: chosen" in capsys.readouterr().err


def test_a_reward_that_changes_is_not_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST", 1)
    reward, options = Path("reward.yaml"), ["--reward", "reward.yaml"]
    reward.write_text("components: {share: {scorer: fakes.Share, letters: aeiou}}")
    monkeypatch.setenv("KILL_AT", "Never")
    process = multiprocessing.get_context("fork").Process(target=measured, args=options)
    process.start()
    process.join(60)
    monkeypatch.delenv("KILL_AT")
    assert len([*folder.glob("pairs.jsonl.*.partial.jsonl")]) == 1
    reward.write_text("components: {share: {scorer: fakes.Share, letters: xyz}}")
    Share.calls.clear()
    measured(*options)
    assert sum(Share.calls) == 8
