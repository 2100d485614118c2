"""`configs/presets`: each file on tiny models of its architecture, against the same in code."""

from __future__ import annotations

import tempfile
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
    sources=["The food was good, and we waited.", "It was great!"],
    references=["The food was good.", "It was terrible."],
)


def with_models(name: str, **folders: str) -> Path:
    """Write a preset with folders in place of names of models, for the CPU; return the file."""
    text = recipe_text(name).replace("device: cuda", "device: cpu")
    for published, folder in folders.items():
        assert published in text
        text = text.replace(published, folder)
    file = Path(f"{name}.yaml")
    file.write_text(text)
    return file


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def same(file: Path, expected: Reward) -> None:
    given, wanted = build_reward(file)(SAMPLES), expected(SAMPLES)
    assert not wanted.failed.any()
    assert given.components.keys() == wanted.components.keys()
    for name, values in wanted.components.items():
        np.testing.assert_allclose(given.components[name], values, rtol=1e-6)
    np.testing.assert_allclose(given.total, wanted.total, rtol=1e-6)


def test_ctrleval_with_pegasus_and_the_papers_table(pegasus: str) -> None:
    table = Path("iwf_full.txt")
    table.write_text("\n".join(str(1 + i % 7) for i in range(307)))
    scorer = CTRLEval(pegasus, task="sentiment", iwf=table)  # an encoder-decoder's defaults
    aspects = ("coherence", "consistency", "attribute_relevance")
    expected = Reward({aspect: (scorer[aspect], 0.33) for aspect in aspects})
    published = {"google/pegasus-large": pegasus, "iwf: iwf_full.txt": f"iwf: {table}"}
    same(with_models("ctrleval_as_published", **published), expected)
