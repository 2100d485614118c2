"""Figures of a whole corpus beside the means, and values of each prompt, by brute force."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_choice import (
    GenerationScorer,
    MisconfigurationException,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)

from ctrlreward import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

PROMPTS = Samples(["a", "b", "c", "d"], groups=["x", "x", "y", "y"])


class Letters(Scorer):
    """Number of letters; of a corpus, letters per word, by its two parts, and its deviation."""

    corpus_columns = ("letters", "words")

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        letters, words = columns["letters"], columns["words"]
        figure = float(np.nansum(letters) / np.nansum(words))
        return {"letters": figure, "letters_deviation": float(np.nanstd(words))}

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            "letters": ScoreSpec(True, (0.0, math.inf)),
            "words": ScoreSpec(True, (0.0, math.inf)),
        }

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        letters = [float(len(t)) if "!" not in t else math.nan for t in samples.texts]
        words = [float(len(text.split())) for text in samples.texts]
        return {"letters": np.array(letters), "words": np.array(words)}


class Variety(Scorer):
    """Share of different last words in a group; a text that ends with "fails" has no score."""

    pointwise = False
    of_groups = True
    breaks = False

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"variety": ScoreSpec(True, (0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        if self.breaks and len(samples) < 8:
            raise RuntimeError("scored again")
        groups = samples.require("groups", "Variety")
        words = [text.split()[-1] for text in samples.texts]
        members = [[w for w, g in zip(words, groups, strict=True) if g == own] for own in groups]
        shares = np.array([len(set(each)) / len(each) for each in members])
        shares[[word == "fails" for word in words]] = math.nan
        return {"variety": shares}


@pytest.fixture
def run(fit, counter):
    """Function that trains a module whose second completion of prompt `c` fails."""

    class Writer(counter):
        def complete(self, prompts: list[str]) -> list[str]:
            step = round(self.weight.item())
            return [
                " no!" if place == 5 and step == 1 else f" {'ab' * (place + step)} {place % 3}"
                for place in range(len(prompts))
            ]

    def train(scores: dict[str, Any], *others: pl.Callback, steps: int = 1) -> GenerationScorer:
        scorer = GenerationScorer(scores, PROMPTS, generations_per_prompt=2)
        fit(Writer(), [scorer, *others], max_steps=steps)
        return scorer

    return train


def read_rows(scorer: GenerationScorer, step: int) -> list[dict[str, Any]]:
    assert scorer.folder is not None
    path = scorer.folder / f"step={step:06d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def letters_per_word(texts: Sequence[str]) -> float:
    valid = [len(text) for text in texts if "!" not in text]
    return sum(valid) / sum(len(text.split()) for text in texts)


def test_figures_means_and_jackknife_values_by_brute_force(run) -> None:
    letters = Letters()
    scorer = run({"letters": letters["letters"], "variety": Variety()})
    rows = read_rows(scorer, 1)
    texts = [row["text"] for row in rows]
    assert "no!" in texts[5]
    assert set(rows[0]["scores"]) == {"letters", "variety"}  # not the parts of the corpus

    def per_word(kept: list[int]) -> float:
        return letters_per_word([texts[i] for i in kept])

    def variety(kept: list[int]) -> float:
        groups = [PROMPTS.groups[i // 2] for i in kept]  # type: ignore[index]
        samples = Samples([texts[i] for i in kept], groups=groups)
        return float(Variety().score_samples(samples)["variety"].mean())

    found = scorer.evidence
    lengths = [math.nan if "!" in text else len(text) for text in texts]
    means = np.nanmean(np.reshape(lengths, (4, 2)), axis=1)
    assert found["score/letters"] == pytest.approx(means)
    assert list(found["score/fail_rate"]) == [0, 0, 0.5, 0]
    assert scorer.by_prompt["score/letters"].shape == (4, 2)
    everything = list(range(8))
    for key, figure in (("score/corpus/letters", per_word), ("score/variety", variety)):
        without = [figure([i for i in everything if i // 2 != prompt]) for prompt in range(4)]
        expected = [4 * figure(everything) - 3 * value for value in without]
        assert found[key] == pytest.approx(expected)


def test_failed_texts_of_groups_are_left_out_once(fit, counter) -> None:
    class Writer(counter):
        def complete(self, prompts: list[str]) -> list[str]:
            return [" fails" if i == 5 else f" {i}" for i in range(len(prompts))]

    scorer = GenerationScorer({"v": Variety()}, PROMPTS, generations_per_prompt=2)
    fit(Writer(), [scorer], max_steps=1)
    assert np.isfinite(scorer.evidence["score/v"]).all()


def test_texts_are_written_before_groups_are_scored_again(run, tmp_path) -> None:
    breaking = Variety()
    breaking.breaks = True
    with pytest.raises(RuntimeError, match="scored again"):
        run({"v": breaking})
    (file,) = (tmp_path / "samples" / "score").iterdir()
    assert len(file.read_text().splitlines()) == 8


def test_decisions_follow_the_corpus(run, tmp_path: Path) -> None:
    letters = Letters()
    keeper = RewardCheckpoint(
        "score/corpus/letters",
        dirpath=str(tmp_path / "best"),
        constraints={"score/corpus/letters_deviation": (None, 0.1)},  # not met at step 1
    )
    front = ParetoCheckpoint(
        ["score/corpus/letters", "score/corpus/letters_deviation"], str(tmp_path / "front")
    )
    stop = RewardEarlyStopping("score/corpus/letters")
    guard = ProxyGuard("score/letters", "score/corpus/letters")
    scorer = run({"letters": letters["letters"]}, stop, keeper, front, guard, steps=4)
    texts = [[row["text"] for row in read_rows(scorer, step)] for step in (1, 2, 3, 4)]
    figures = [letters_per_word(each) for each in texts]
    assert figures == sorted(figures)  # texts get longer
    assert stop.state.best == pytest.approx(figures[3])
    assert guard.state.tests == 3
    assert front.metrics["score/corpus/letters_deviation"] == "min"
    assert (keeper.selected_step, keeper.state.validations, [*front.kept]) == (4, 4, [4])
    assert [*keeper.state.candidates] == [2, 3, 4]
    name = f"step=000004-letters={figures[3]:.3f}.ckpt"
    assert [path.name for path in (tmp_path / "best").glob("step=*")] == [name]
    with pytest.raises(MisconfigurationException, match="mode"):
        run(
            {"letters": letters["letters"]},
            RewardCheckpoint("score/corpus/letters_deviation", "max"),
        )
