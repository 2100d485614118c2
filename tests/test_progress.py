"""What a bar shows as finished, and where it is shown."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fakes import OneLetter

from ctrlreward import Samples, progress
from ctrlreward.progress import track
from ctrlreward.scorers.parts import score_parts


@pytest.mark.parametrize(("terminal", "rank"), [(True, 0), (True, 1), (False, 0)])
def test_rank_0_counts_distinct_texts_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, rank: int
) -> None:
    bars: list[Any] = []
    build = progress.tqdm
    monkeypatch.setattr(progress, "tqdm", lambda **given: bars.append(build(**given)) or bars[-1])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress, "rank_and_ranks", lambda: (rank, 2))
    score_parts({"letters": OneLetter()["letters"]}, Samples(["soup", "tea", "soup"]))
    with track("more", 12, done=2) as advance:
        advance(3)
    shown = terminal and rank == 0
    assert [bar.n for bar in bars] == ([2, 5] if shown else [0, 2])
