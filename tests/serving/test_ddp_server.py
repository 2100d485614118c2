"""A training of two ranks whose reward and monitored scores are one server's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from letter_scorers import Letters
from module_files import load

from ctrlreward import Reward

SCRIPT = Path(__file__).with_name("ddp_ranks.py")
script = load(SCRIPT)


def test_two_ranks_score_by_one_server_as_in_process(
    live_server: Callable[..., Any],
    letters: Letters,
    reward: Reward,
    run_script: Callable[..., None],
    tmp_path: Path,
) -> None:
    run_script(SCRIPT, live_server(reward).url, tmp_path, timeout=120)
    asked = [text for texts in letters.calls for text in texts]
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank in range(2):
        texts = [["a" * i + "b" * (rank + 1), "b" * (rank + i)] for i in (1, 2, 3)]
        here = [float(total) for pair in texts for total in reward(script.labelled(pair)).total]
        assert list(seen[rank]["totals"].values()) == here
        assert {text for pair in texts for text in pair} <= set(asked)
    single = script.run(reward, 1, tmp_path / "single")
    assert [rank["logged"] for rank in seen] == [single["logged"]] * 2
    assert len(single["logged"]) == 3
    assert single["logged"][0]["score/length"] != single["logged"][-1]["score/length"]
    completed = [f"{prompt}{'a' * 3}b" for prompt in script.PROMPTS.texts]
    assert [asked.count(text) for text in completed] == [1] * 5  # rank 0 asked for both
