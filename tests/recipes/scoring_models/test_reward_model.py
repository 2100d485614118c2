"""Two reward models by TRL's `RewardTrainer`, and a policy that trains against one of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ctrlreward import RewardModel, Samples
from ctrlreward.cli import main
from ctrlreward.files import JsonLog
from ctrlreward.recipes.scoring_models import reward_model
from ctrlreward.tables.rows import read_rows

RECIPE = "configs/controlled_generation/reward_model_smollm2.yaml"


def letters(texts: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Reward lowercase letters."""
    assert {*labels} == {"positive"}
    return [float(sum(map(str.islower, text))) for text in texts]


@pytest.fixture(autouse=True)
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own


def test_smoke(
    workplace: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    given = ["--teacher", f"{__name__}:letters", "--margin", "0", "--use_cpu", "--smoke"]
    reward_model.main([*given, "--learning_rate", "0.05"])
    summary = json.loads(Path("runs/reward_models/summary.json").read_text())
    assert list(summary) == ["reward", "held_out"]
    printed = capsys.readouterr().out
    prompts, rewards = [], []
    for name, found in summary.items():
        folder = Path("runs/reward_models", name)
        pairs = read_rows(folder / "pairs.jsonl")
        assert found["pairs"] == len(pairs)
        assert found["steps"] == 2
        accuracy = found["accuracy"]
        assert 0 <= accuracy["low"] <= accuracy["value"] <= accuracy["high"] <= 1
        assert f"{name}: {len(pairs)} pairs, 2 steps, accuracy on the other half's" in printed
        prompts.append({pair["prompt"] for pair in pairs})
        texts = Samples.from_jsonl(folder / "texts.jsonl")
        assert len(texts) == 4 * 4
        found = RewardModel(str(folder), template="plain").score(texts)["reward"]
        written = [bool(text.strip()) for text in texts.completions]
        assert np.isfinite(found).tolist() == written  # an empty completion has no reward
        rewards.append(found[written])
    assert not prompts[0] & prompts[1]
    assert all(np.ptp(each) > 0 for each in rewards)

    main(["train", RECIPE, "--smoke"])
    (root,) = tmp_path.glob("*-smoke-*")
    history = JsonLog(root / "metrics.jsonl").read()
    held_out = (f"score/{name}" for name in ("reward", "held_out_reward", "distinct_2", "length"))
    for key in ("reward/total", "guard/alarm", *held_out):
        assert len([row for row in history if key in row]) == 2
    assert json.loads((root / "summary.json").read_text())["steps"] == 2
    assert 'class="verdict' in (root / "report.html").read_text()


def test_the_word_list_counts_towards_the_label() -> None:
    labels = ["positive", "negative", "positive", "negative"]
    good, bad, cold, neutral = reward_model.word_list(
        ["A good day."] * 2 + ["A bad day.", "A day."], labels
    )
    assert good == -bad > 0 > cold
    assert neutral == 0
    assert reward_model.words([" was good.", ""]) == [2, 0]
