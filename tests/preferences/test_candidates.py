"""The best of n completions and preference pairs, against brute force."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import Reward, Samples, best_of_n
from ctrlreward.preferences import write_pairs
from ctrlreward.tables.rows import read_rows

NAN = float("nan")


def brevity(texts: Sequence[str]) -> list[float | None]:
    return [None if "x" in text else -float(len(text)) for text in texts]


def test_the_best_of_given_completions() -> None:
    texts = ["The soup was cold.", "The view was", "The soup was", "The view", "The soup x"]
    best = best_of_n(brevity, texts, prefixes=[text[:8] for text in texts])
    assert best.samples.texts == ("The soup was", "The view")
    assert best.samples.prefixes == ("The soup", "The view")
    assert best.rows == [2, 3]
    assert best.totals.tolist() == [-12.0, -8.0]


def test_groups_come_before_prompts_and_without_any_all_are_of_one() -> None:
    samples = Samples(["aa", "b", "c"], prompts=["p"] * 3, groups=[0, 1, 1])
    assert best_of_n(brevity, samples).samples.texts == ("aa", "b")
    assert best_of_n(Reward(brevity), ["soup", "a", "b"]).samples.texts == ("a",)


def test_a_model_completes_each_prompt_n_times() -> None:
    asked: list[list[str]] = []

    class Model:
        def complete(self, prompts: Sequence[str]) -> list[str]:
            asked.append(list(prompts))
            return [" was good"[: 9 - i] for i in range(len(prompts))]

    best = best_of_n(brevity, ["The soup", "The view"], Model(), n=3)
    assert asked == [["The soup"] * 3 + ["The view"] * 3]
    assert best.samples.texts == ("The soup was go", "The view was")
    assert best.rows == [2, 5]


def test_a_prompt_without_any_reward_is_nan_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        best = best_of_n(brevity, ["ax", "bx", "c"], prompts=["p", "p", "q"])
    assert best.samples.texts == ("ax", "c")
    np.testing.assert_array_equal(best.totals, [NAN, -1.0])
    assert "1 of 2 prompts have no completion with a reward" in caplog.text


rows = st.lists(
    st.tuples(st.sampled_from("pqr"), st.sampled_from("abcde"), st.sampled_from([0, 1, 2, 3, NAN])),
    min_size=1,
    max_size=20,
)


@given(rows, st.integers(1, 4), st.sampled_from([0.0, 1.0]))
def test_pairs_of_any_completions(
    given_rows: list[tuple[str, str, float]], per_prompt: int, margin: float
) -> None:
    prompts, texts, totals = zip(*given_rows, strict=True)
    samples = Samples(texts, prompts=prompts)
    with TemporaryDirectory() as folder:
        file = Path(folder, "pairs.jsonl")
        pairs = write_pairs(file, samples, np.array(totals, float), per_prompt, margin)
        assert len(file.read_text().splitlines()) == len(pairs.chosen)
    both = list(zip(pairs.chosen, pairs.rejected, strict=True))
    first_row = {(prompts[i], texts[i]): i for i in reversed(range(len(texts)))}
    for prompt in set(prompts):
        own = [(i, j) for i, j in both if prompts[i] == prompt]
        # A text is on one side only, of one pair at most.
        used = [texts[i] for pair in own for i in pair]
        assert len(set(used)) == len(used)
        scored = {i for (p, _), i in first_row.items() if p == prompt and totals[i] == totals[i]}
        assert {i for pair in own for i in pair} <= scored
        assert all(totals[i] - totals[j] > margin for i, j in own)
        wanted = min(per_prompt, len(scored) // 2)
        assert len(own) <= wanted
        values = [totals[i] for i in scored]
        if own:
            best, worst = max(own, key=lambda pair: totals[pair[0]] - totals[pair[1]])
            assert (totals[best], totals[worst]) == (max(values), min(values))
        elif len(values) > 1:
            assert max(values) - min(values) <= margin
    assert pairs.failed == sum(math.isnan(totals[i]) for i in first_row.values())


# Files of pairs, as TRL reads them

PREFIXES = ["The soup"] * 4 + ["The view"] * 2 + ["A dog"] * 2
TEXTS = [
    *("The soup was good.", "The soup was.", "The soup was x.", "The soup was."),
    *("The view ok", "The view no", "A dog", "A dog ran"),
]
COMPLETIONS = Samples(TEXTS, prefixes=PREFIXES)
BREVITY = np.array([-float(len(text)) for text in COMPLETIONS.completions])
BREVITY[2] = np.nan


def test_pairs_and_what_is_left_out(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", COMPLETIONS, BREVITY)
    assert read_rows(tmp_path / "pairs.jsonl") == [
        {
            "prompt": "The soup",
            "chosen": " was.",
            "rejected": " was good.",
            "chosen_reward": -5.0,
            "rejected_reward": -10.0,
        }
    ]
    assert pairs.failed == 2  # one without a reward, and an empty one
    assert not write_pairs(tmp_path / "none.jsonl", COMPLETIONS, BREVITY, margin=5.0).chosen
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_prompts_of_the_model_and_of_chats(tmp_path: Path) -> None:
    prompts = [f"A short text: {prefix}" for prefix in PREFIXES]
    write_pairs(tmp_path / "pairs.jsonl", COMPLETIONS.replace(prompts=prompts), BREVITY)
    (pair,) = read_rows(tmp_path / "pairs.jsonl")
    assert pair["prompt"] + pair["chosen"] == "A short text: The soup was."
    chat = Samples(["Leek soup. ", "Leek."], prompts=["Name a soup."] * 2)
    write_pairs(tmp_path / "chat.jsonl", chat, np.array([1.0, 2.0]), chat=True)
    (pair,) = read_rows(tmp_path / "chat.jsonl")
    assert pair["prompt"] == [{"role": "user", "content": "Name a soup."}]
    assert pair["chosen"] == [{"role": "assistant", "content": "Leek."}]
    assert pair["rejected"] == [{"role": "assistant", "content": "Leek soup."}]
