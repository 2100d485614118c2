"""Values of each prompt: means, and jackknife values by brute force."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from lightning_choice import GenerationScorer

from ctrlreward import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

PROMPTS = Samples(["a", "b", "c", "d"], groups=["x", "x", "y", "y"])


class Counts(Scorer):
    """Number of letters, and a score of the corpus: letters per word, by its two parts."""

    corpus_columns = ("letters", "words")

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        letters, words = columns["letters"], columns["words"]
        return {"letters": float(np.nansum(letters) / np.nansum(words))}

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
    """Share of different last words in a group."""

    pointwise = False
    of_groups = True

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"variety": ScoreSpec(True, (0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        groups = samples.require("groups", "Variety")
        words = [text.split()[-1] for text in samples.texts]
        return {
            "variety": np.array(
                [
                    len({w for w, g in zip(words, groups, strict=True) if g == group})
                    / groups.count(group)
                    for group in groups
                ]
            )
        }


@pytest.fixture
def writer(counter):
    """Return a module whose second completion of prompt `c` fails, and which repeats itself."""

    class Writer(counter):
        def complete(self, prompts: list[str]) -> list[str]:
            step = round(self.weight.item())
            return [
                " no!" if place == 5 and step == 1 else f" {'ab' * (place + step)} {place % 3}"
                for place in range(len(prompts))
            ]

    return Writer()


def run(fit, writer, steps: int = 1, **options: Any) -> GenerationScorer:
    counts = Counts()
    scores = {"letters": counts["letters"], "variety": Variety()}
    scorer = GenerationScorer(scores, PROMPTS, generations_per_prompt=2, **options)
    fit(writer, [scorer], max_steps=steps)
    return scorer


def read_rows(scorer: GenerationScorer, step: int) -> list[dict[str, Any]]:
    assert scorer.folder is not None
    path = scorer.folder / f"step={step:06d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_means_and_jackknife_values_by_brute_force(fit, writer) -> None:
    scorer = run(fit, writer, 1)
    rows = read_rows(scorer, 1)
    texts = [row["text"] for row in rows]
    assert "no!" in texts[5]

    def letters(kept: list[int]) -> float:
        scores = Counts().score_samples(Samples([texts[i] for i in kept]))
        return float(np.nansum(scores["letters"]) / np.nansum(scores["words"]))

    def variety(kept: list[int]) -> float:
        groups = [PROMPTS.groups[i // 2] for i in kept]  # type: ignore[index]
        samples = Samples([texts[i] for i in kept], groups=groups)
        return float(Variety().score_samples(samples)["variety"].mean())

    found = scorer.evidence
    assert found["score/letters"] == pytest.approx(
        [
            np.nanmean([math.nan if "!" in t else len(t) for t in texts[i : i + 2]])
            for i in (0, 2, 4, 6)
        ]
    )
    assert list(found["score/fail_rate"]) == [0, 0, 0.5, 0]
    assert scorer.by_prompt["score/letters"].shape == (4, 2)
    everything = list(range(8))
    for key, figure in (("score/corpus/letters", letters), ("score/variety", variety)):
        without = [figure([i for i in everything if i // 2 != prompt]) for prompt in range(4)]
        expected = [4 * figure(everything) - 3 * value for value in without]
        assert found[key] == pytest.approx(expected)


def test_failed_texts_of_groups_are_left_out_once(fit, counter) -> None:
    class Half(Variety):
        def score_samples(self, samples: Samples) -> dict[str, Scores]:
            assert (
                all(text for text in samples.texts) or len(samples) == 8
            )  # only in the first call
            values = super().score_samples(samples)["variety"]
            values[[text.endswith(" 5") for text in samples.texts]] = math.nan
            return {"variety": values}

    class Writer(counter):
        def complete(self, prompts: list[str]) -> list[str]:
            return [f" {place}" for place in range(len(prompts))]

    scorer = GenerationScorer({"v": Half()}, PROMPTS, generations_per_prompt=2)
    fit(Writer(), [scorer], max_steps=1)
    assert np.isfinite(scorer.evidence["score/v"]).all()


def test_texts_are_written_before_groups_are_scored_again(fit, writer) -> None:
    class Once(Variety):
        def score_samples(self, samples: Samples) -> dict[str, Scores]:
            if len(samples) < 8:
                raise RuntimeError("scored again")
            return super().score_samples(samples)

    scorer = GenerationScorer({"v": Once()}, PROMPTS, generations_per_prompt=2)
    with pytest.raises(RuntimeError, match="scored again"):
        fit(writer, [scorer], max_steps=1)
    assert len(read_rows(scorer, 1)) == 8
