"""Figures of a whole corpus beside the means, and values of each prompt, by brute force."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fakes import Letters, Variety
from hypothesis import given
from hypothesis import strategies as st
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


def test_texts_are_written_before_groups_are_scored_again(tmp_path: Path) -> None:
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


@given(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=5),
    st.lists(st.text("ab", max_size=3), min_size=10, max_size=10),
    st.booleans(),
)
def test_groups_are_scored_again_only_where_a_prompt_shares_them(
    names: list[str], texts: list[str], given_groups: bool
) -> None:
    """As if all texts were scored without each prompt; once for groups of one prompt each."""

    class Counted(Variety):
        calls = 0

        def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
            self.calls += 1
            return super().score_samples(samples)

    counted, prompts = Counted(), [f"{name} " for name in names]
    held_out = Samples(prompts, prefixes=prompts, groups=names if given_groups else None)
    scorer = HeldOutScorer({"v": counted}, held_out, generations_per_prompt=2)
    scorer.evaluate(lambda asked: texts[: len(asked)])
    assert counted.calls == 1 or len({*names}) < len(names)
    rows = [(i // 2, prompts[i // 2] + texts[i]) for i in range(2 * len(names))]

    def mean(kept: list[tuple[int, str]]) -> float:
        groups = [names[i] if given_groups else str(i) for i, _ in kept]
        samples = Samples([text for _, text in kept], groups=groups)
        return float(Variety().score_samples(samples)["variety"].mean())

    without = [mean([row for row in rows if row[0] != i]) for i in range(len(names))]
    if len(names) > 1:
        expected = [len(names) * mean(rows) - (len(names) - 1) * value for value in without]
        np.testing.assert_allclose(scorer.evidence["score/v"], expected)


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
