"""Figures of a whole corpus beside the means, and values of each prompt, by brute force."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fakes import Letters, Variety
from lightning_choice import (
    GenerationScorer,
    MisconfigurationException,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

from ctrlreward import HeldOutScorer, Samples

PROMPTS = Samples(["a", "b", "c", "d"], groups=["x", "x", "y", "y"], labels=["a"] * 4)


class Ratio(Letters):
    """Letters of a text; of a corpus, letters by characters, and the deviation of the lengths."""

    def corpus_of(self, columns):
        return {
            **super().corpus_of(columns),
            "letters_deviation": float(np.nanstd(columns["length"])),
        }


def texts_at(step: int) -> list[str]:
    """Return two completions of each prompt."""
    return [f"{'ab' * (place + step)}{'a' * (place % 3)}" for place in range(8)]


def test_figures_means_and_jackknife_values_by_brute_force() -> None:
    variety, letters = Variety(), Ratio()
    scores = {"letters": letters["letters"], "variety": variety["variety"]}
    scorer = HeldOutScorer(scores, PROMPTS, generations_per_prompt=2)
    prompts = [row for row in PROMPTS.texts for _ in range(2)]
    texts = [prompt + text for prompt, text in zip(prompts, texts_at(1), strict=True)]
    logged = scorer.evaluate(lambda prompts: texts_at(1))
    everything = list(range(8))

    def of_corpus(kept: list[int]) -> float:
        return sum(texts[i].count("a") for i in kept) / sum(len(texts[i]) for i in kept)

    def of_groups(kept: list[int]) -> float:
        groups = [PROMPTS.groups[i // 2] for i in kept]  # type: ignore[index]
        samples = Samples([texts[i] for i in kept], groups=groups)
        return float(variety.score_samples(samples)["variety"].mean())

    found = scorer.evidence
    counts = np.reshape([text.count("a") for text in texts], (4, 2))
    assert found["score/letters"] == pytest.approx(counts.mean(axis=1))
    assert scorer.by_prompt["score/letters"].tolist() == counts.tolist()
    assert logged["score/corpus/letters"] == pytest.approx(of_corpus(everything))
    for key, figure in (("score/corpus/letters", of_corpus), ("score/variety", of_groups)):
        without = [figure([i for i in everything if i // 2 != prompt]) for prompt in range(4)]
        expected = [4 * figure(everything) - 3 * value for value in without]
        assert found[key] == pytest.approx(expected)


def test_failed_texts_of_groups_are_left_out_once_and_texts_written_first(tmp_path: Path) -> None:
    class Failing(Variety):
        breaks = False

        def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
            if self.breaks and len(samples) < 8:
                raise RuntimeError("scored again")
            values = super().score_samples(samples)["variety"]
            return {"variety": np.where([t.endswith("!") for t in samples.texts], math.nan, values)}

    failing = Failing()
    scorer = HeldOutScorer({"v": failing}, PROMPTS, generations_per_prompt=2)
    scorer.evaluate(lambda prompts: ["!" if i == 5 else f"{i}" for i in range(len(prompts))])
    assert np.isfinite(scorer.evidence["score/v"]).all()
    assert list(scorer.evidence["score/fail_rate"]) == [0, 0, 0.5, 0]
    failing.breaks, path = True, tmp_path / "texts.jsonl"
    with pytest.raises(RuntimeError, match="scored again"):
        scorer.score_samples(PROMPTS[[i // 2 for i in range(8)]], path)
    assert len(path.read_text().splitlines()) == 8


def test_decisions_follow_the_corpus(fit, counter, tmp_path: Path) -> None:
    """Its keys have the directions of the scores, and of deviations."""

    class Writer(counter):
        def complete(self, prompts: list[str]) -> list[str]:
            return ["b" * (8 - round(self.weight.item())) for _ in prompts]  # shorter and shorter

    letters, key = Ratio()["letters"], "score/corpus/letters"
    bounds = {f"{key}_deviation": (None, 0.1), "score/corpus/letters": (0.2, None)}
    keeper = RewardCheckpoint(key, dirpath=str(tmp_path / "best"), constraints=bounds)
    front = ParetoCheckpoint([key, f"{key}_deviation"], str(tmp_path / "front"))
    stop, guard = RewardEarlyStopping(key), ProxyGuard("score/letters", key)
    scorer = GenerationScorer({"letters": letters}, Samples(["a", "a"], labels=["a", "a"]))
    fit(Writer(), [scorer, stop, keeper, front, guard], max_steps=5)
    assert stop.state.best == pytest.approx(1 / 4)
    assert guard.state.tests == 4
    assert front.metrics[f"{key}_deviation"] == "min"
    assert (keeper.selected_step, [*keeper.state.candidates]) == (5, [4, 5])
    names = [path.name for path in (tmp_path / "best").glob("step=*")]
    assert names == ["step=000005-letters=0.250.ckpt"]
    with pytest.raises(MisconfigurationException, match="mode"):
        fit(Writer(), [scorer, RewardCheckpoint(f"{key}_deviation", "max")])
