"""Pseudo-pairs: exchanges of words, the choice of judges, and the file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import Samples, Scorer, ScoreSpec, Similarity, WordVectors, functional
from ctrlreward.recipes.style_transfer import Sentences
from ctrlreward.recipes.style_transfer.pseudo_pairs import (
    PseudoPairs,
    best_rewritings,
    rewritings,
    word_log_odds,
)
from ctrlreward.scorers import TransferQuality

THRESHOLDS = (63.0, 20.0, 97.0, -37.0)
THINGS = ("soup", "room", "bus", "play", "bread")
SOUR, SWEET = ("cold", "dirty", "late"), ("warm", "clean", "lovely")
WORDS = (*THINGS, *SOUR, *SWEET)
# Things are far apart, and each style word is a little of every thing: the nearest sentences of
# the other style are those of the same thing.
VECTORS = WordVectors(
    {word: np.eye(len(THINGS))[i] for i, word in enumerate(THINGS)}
    | {word: np.full(len(THINGS), 0.1) for word in SOUR + SWEET}
)


class Style(Scorer):
    """0.9 for a text with more words of its label than of the other one."""

    @property
    def specs(self) -> dict[str, ScoreSpec]:
        return {"label_probability": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
        values = []
        for text, label in zip(samples.texts, samples.labels, strict=True):
            sour, sweet = (sum(w in words for w in text.split()) for words in (SOUR, SWEET))
            more = sour > sweet if label == "sour" else sweet > sour
            values.append(0.9 if more else 0.2)
        return {"label_probability": np.array(values)}


class Length(Scorer):
    """Perplexity that grows with the number of words."""

    @property
    def specs(self) -> dict[str, ScoreSpec]:
        return {"perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
        return {"perplexity": np.array([5.0 + 4 * len(t.split()) for t in samples.texts])}


@dataclass(frozen=True)
class RuleJudges:
    """Judges by rules, in place of `ScoringModels`."""

    def quality(self) -> TransferQuality:
        return TransferQuality(Style(), Similarity(VECTORS), Length(), THRESHOLDS)


@pytest.fixture
def pairs(tmp_path: Path) -> PseudoPairs:
    for style, words in (("sour", SOUR), ("sweet", SWEET)):
        lines = [f"the {thing} was so {word} ." for thing in THINGS for word in words]
        (tmp_path / style).write_text("\n".join([*lines, "too short"]))
    (tmp_path / "held_out").write_text("The bread was so lovely .\tx\n")
    files = {style: str(tmp_path / style) for style in ("sour", "sweet")}
    sentences = Sentences(files, count=10, exclude=[str(tmp_path / "held_out")])
    return PseudoPairs(sentences, RuleJudges(), str(tmp_path / "runs" / "pairs.jsonl"), 6)


def test_each_sentence_keeps_its_thing_and_gets_the_other_style(pairs: PseudoPairs) -> None:
    pairs.make()
    rows = [json.loads(line) for line in Path(pairs.file).read_text().splitlines()]
    assert len(rows) == 20
    assert {row["source"] for row in rows} == set(pairs.sentences.prompts().sources)
    for row in rows:
        old, new = row["source"].split(), row["text"].split()
        assert row["label"] == ("sweet" if old[4] in SOUR else "sour")
        assert new[4] in (SWEET if row["label"] == "sweet" else SOUR)
        assert new[:4] == old[:4]


def test_a_file_is_read_again_and_gives_both_directions(pairs: PseudoPairs) -> None:
    pairs.make()
    first = Path(pairs.file).read_text()
    samples = pairs.samples()
    half = len(samples) // 2
    assert samples.sources[:half] == samples.references[half:]
    assert samples.references[:half] == samples.sources[half:]
    for source, prompt, label in zip(samples.sources, samples.prompts, samples.labels, strict=True):
        style = "sour" if label == "sweet" else "sweet"
        assert prompt == f"{style}: {source}\n{label}:"
    # Another setting does not matter for a file that exists.
    replace(pairs, neighbours=1).make()
    assert Path(pairs.file).read_text() == first


def test_the_best_rewriting_is_that_of_a_search_over_all() -> None:
    draws = np.random.default_rng(0)
    quality = RuleJudges().quality()
    sources = [f"the {thing} was {word} ." for thing in THINGS for word in SOUR]
    candidates, expected = [], {}
    for source in sources:
        row, values = {}, {}
        for _ in range(draws.integers(0, 8)):
            text = " ".join(draws.choice(WORDS, size=draws.integers(1, 6)))
            row[text] = int(draws.integers(1, 9))
        candidates.append(row)
        for text, count in row.items():
            one = Samples([text], sources=[source], labels=["sweet"])
            style = Style().score(one)["label_probability"][0]
            content = quality.similarity.score(one)["similarity"][0]
            perplexity = 5.0 + 4 * len(text.split())
            gm = functional.adjusted_gm(style, content, perplexity, THRESHOLDS)
            values[text] = float(gm) * (1 + log(count))
        if values and max(values.values()) > 0:
            expected[source] = max(values, key=values.__getitem__)
    assert 3 <= len(expected) < len(sources)
    assert best_rewritings(sources, candidates, "sweet", quality) == expected


sentences = st.lists(st.sampled_from("a b c d e".split()), min_size=1, max_size=7).map(" ".join)


@given(source=sentences, lenders=st.lists(sentences, max_size=5))
def test_rewritings_have_the_words_of_source_and_lenders(source: str, lenders: list[str]) -> None:
    found = rewritings(source, lenders)
    known = set(source.split()).union(*(lender.split() for lender in lenders))
    assert source not in found
    for text, count in found.items():
        assert set(text.split()) <= known
        assert 1 <= count <= len(lenders)
        # At most two words more at each place, of which there are no more than words and gaps.
        assert len(text.split()) <= len(source.split()) + 2 * (len(source.split()) + 1)
    for lender in lenders:
        shared = set(source.split()) & set(lender.split())
        if not shared:
            assert rewritings(source, [lender]) == {}


def test_log_odds_are_those_of_a_count() -> None:
    first, second = ["a b", "a a", "b"], ["b", "c"]
    odds = word_log_odds(first, second)
    assert odds == pytest.approx(
        {"a": log((1 / 4) / (3 / 5)), "b": log((2 / 4) / (3 / 5)), "c": log((2 / 4) / (1 / 5))}
    )
    assert exp(odds["c"]) == pytest.approx(2.5)
