"""`configs/presets` on tiny models of its architecture, against the same in code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctrlreward import CTRLEval, Reward, Samples
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.jobs.recipes import recipe_text

SAMPLES = Samples(
    ["The soup was good. We waited an hour.", "All in all, it was terrible."],
    prefixes=["The soup", "All in all"],
    labels=["positive", "negative"],
)


def test_ctrleval_with_pegasus_and_the_papers_table(
    pegasus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    table, file = tmp_path / "iwf_full.txt", tmp_path / "preset.yaml"
    table.write_text("\n".join(str(1 + i % 7) for i in range(307)))
    text = recipe_text("ctrleval_as_published")
    for published, ours in (
        ("google/pegasus-large", pegasus),
        ("iwf: iwf_full.txt", f"iwf: {table}"),
    ):
        assert published in text
        text = text.replace(published, ours)
    file.write_text(text)
    scorer = CTRLEval(pegasus, task="sentiment", iwf=table)  # an encoder-decoder's defaults
    aspects = ("coherence", "consistency", "attribute_relevance")
    expected = Reward({aspect: (scorer[aspect], 0.33) for aspect in aspects})(SAMPLES)
    batch = build_reward(file)(SAMPLES)
    assert not expected.failed.any()
    for name, values in expected.components.items():
        np.testing.assert_allclose(batch.components[name], values, rtol=1e-6)
    np.testing.assert_allclose(batch.total, expected.total, rtol=1e-6)
