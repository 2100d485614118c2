"""Pseudo-pairs: exchanges of words, the choice of judges, and the file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import ClassVar

import numpy as np

from ctrlreward import Samples, Scorer, ScoreSpec, Similarity, WordVectors, functional
from ctrlreward.recipes.style_transfer import Sentences
from ctrlreward.recipes.style_transfer.pseudo_pairs import PseudoPairs, best_rewritings
from ctrlreward.scorers import TransferQuality

THRESHOLDS = (63.0, 20.0, 97.0, -37.0)
THINGS = ("soup", "room", "bus", "play", "bread")
SOUR, SWEET = ("cold", "dirty", "late"), ("warm", "clean", "lovely")
# Things are far apart, and each style word is a little of every thing: the nearest sentences of
# the other style are those of the same thing.
VECTORS = WordVectors(
    {word: np.eye(len(THINGS))[i] for i, word in enumerate(THINGS)}
    | {word: np.full(len(THINGS), 0.1) for word in SOUR + SWEET}
)


def style(text: str, label: str) -> float:
    """0.9 for a text with more words of its label than of the other one."""
    sour, sweet = (sum(word in words for word in text.split()) for words in (SOUR, SWEET))
    return 0.9 if (sour > sweet if label == "sour" else sweet > sour) else 0.2


def perplexity(text: str) -> float:
    return 5.0 + 4 * len(text.split())


class ByRule(Scorer):
    """The style, and a perplexity that grows with the number of words."""

    specs: ClassVar = {
        "label_probability": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)),
        "perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf)),
    }

    def score_samples(self, samples: Samples) -> dict[str, list[float]]:
        labels = samples.labels or [""] * len(samples)
        return {
            "label_probability": [*map(style, samples.texts, labels)],
            "perplexity": [*map(perplexity, samples.texts)],
        }


@dataclass(frozen=True)
class RuleJudges:
    """Judges by rules, in place of `ScoringModels`."""

    def quality(self) -> TransferQuality:
        return TransferQuality(ByRule(), Similarity(VECTORS), ByRule(), THRESHOLDS)


def test_each_sentence_keeps_its_thing_and_gets_the_other_style(tmp_path: Path) -> None:
    for name, words in (("sour", SOUR), ("sweet", SWEET)):
        lines = [f"the {thing} was so {word} ." for thing in THINGS for word in words]
        (tmp_path / name).write_text("\n".join([*lines, "too short"]))
    (tmp_path / "held_out").write_text("The bread was so lovely .\tx\n")
    files = {name: str(tmp_path / name) for name in ("sour", "sweet")}
    sentences = Sentences(files, count=10, exclude=[str(tmp_path / "held_out")])
    pairs = PseudoPairs(sentences, RuleJudges(), str(tmp_path / "runs" / "pairs.jsonl"))
    pairs.make()
    content = Path(pairs.file).read_text()
    rows = [json.loads(line) for line in content.splitlines()]
    assert len(rows) == 20
    assert {row["source"] for row in rows} == set(sentences.prompts().sources)
    for row in rows:
        old, new = row["source"].split(), row["text"].split()
        assert row["label"] == ("sweet" if old[4] in SOUR else "sour")
        assert new[4] in (SWEET if row["label"] == "sweet" else SOUR)
        assert new[:4] == old[:4]

    samples = pairs.samples()  # both directions
    assert samples.sources[:20] == samples.references[20:]
    assert samples.references[:20] == samples.sources[20:]
    for source, prompt, label in zip(samples.sources, samples.prompts, samples.labels, strict=True):
        other = "sour" if label == "sweet" else "sweet"
        assert prompt == f"{other}: {source}\n{label}:"
    replace(pairs, sentences=replace(sentences, count=1)).make()  # a file that exists is kept
    assert Path(pairs.file).read_text() == content


def test_the_best_rewriting_is_that_of_a_search_over_all() -> None:
    draws = np.random.default_rng(0)
    quality = RuleJudges().quality()
    words = (*THINGS, *SOUR, *SWEET)
    sources = [f"the {thing} was {word} ." for thing in THINGS for word in SOUR]
    candidates, expected = [], {}
    for source in sources:
        row, values = {}, {}
        for _ in range(draws.integers(0, 8)):
            text = " ".join(draws.choice(words, size=draws.integers(1, 6)))
            row[text] = int(draws.integers(1, 9))
        candidates.append(row)
        for text, count in row.items():
            content = quality.similarity.score([text], sources=[source])["similarity"][0]
            judged = style(text, "sweet"), content, perplexity(text)
            values[text] = float(functional.adjusted_gm(*judged, THRESHOLDS)) * (1 + log(count))
        if values and max(values.values()) > 0:
            expected[source] = max(values, key=values.__getitem__)
    assert 3 <= len(expected) < len(sources)
    assert best_rewritings(sources, candidates, "sweet", quality) == expected
