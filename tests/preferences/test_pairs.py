"""Files of pairs, as TRL reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ctrlreward import Samples
from ctrlreward.preferences import write_pairs
from ctrlreward.tables.rows import read_rows

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
