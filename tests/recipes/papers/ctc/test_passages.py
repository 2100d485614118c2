"""Pairs from running text: which words are replaced, and what they are labelled."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.recipes.papers.ctc.pairs import (
    PassagePairs,
    read_passages,
    replace_units,
    stem,
)
from ctrlreward.recipes.text_files import WORD

PLACES = "Arlen Brack Corrie Dunmoor Elby Farrow Glenta Hollin".split()
POOL = {"name": ["Ivor Keld", "Lorne"], "number": ["77", "4,500"], "year": ["1802"],
        "ed": ["painted"], "s": ["walls"], "word": ["granite", "orchard"]}  # fmt: skip


@pytest.fixture
def novel(tmp_path: Path) -> str:
    """Chapters of eight sentences, each of ten words, wrapped as books are."""
    chapters = []
    for i, place in enumerate(PLACES):
        sailed = f"The ferry to {place} sailed"
        days = [f"{sailed} {10 * i + j} times and nobody noticed <unk> ." for j in range(8)]
        chapters.append(f"= Chapter {i} =\n\n" + " ".join(days))
    (tmp_path / "novel.txt").write_text("\n\n".join(chapters))
    return str(tmp_path / "novel.txt")


def test_passages_are_runs_of_whole_sentences(novel: str) -> None:
    passages = read_passages([novel], (20, 45), 12, 0)
    text = " ".join(Path(novel).read_text().replace(" <unk> .", ".").split())
    assert len(passages) == 12
    for passage in passages:
        joined = " ".join(passage)
        assert joined in text
        assert 20 <= len(WORD.findall(joined)) <= 45
    every = [sentence for passage in passages for sentence in passage]
    assert len(every) == len(set(every))  # none overlaps another
    assert passages == read_passages([novel], (20, 45), 12, 0)
    with pytest.raises(ValueError, match="passages, fewer than 99"):
        read_passages([novel], (20, 45), 99, 0)


@given(
    st.lists(st.sampled_from("the ferry Arlen 12 sailed empty of".split()), max_size=12),
    st.lists(st.sampled_from("ferry Arlen 12 sailed lorne orchard".split()), max_size=8),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_each_word_has_one_label(
    words: list[str], context: list[str], share: float, seed: int
) -> None:
    """A hallucinated word is a content word that the context lacks, and there are no others."""
    other = " ".join(context)
    new, *labels = replace_units(" ".join(words), other, POOL, share, random.Random(seed))
    put_in, absent, function = map(set, labels)
    assert not put_in & absent
    assert not (put_in | absent) & function
    known = {stem(word) for word in WORD.findall(other)}
    for match in WORD.finditer(new):
        lacking = stem(match.group()) not in known
        if match.group().lower() in ENGLISH_STOP_WORDS:
            assert match.span() in function
        elif not match.group().replace(",", "").isdigit():
            assert (match.span() in put_in | absent) == lacking


def test_half_of_the_contexts_lack_the_text(novel: str) -> None:
    settings = PassagePairs([novel], 12, (20, 45), replaced=(0, 0))
    pairs = settings.build()
    assert pairs == settings.build()
    assert [pair.source for pair in pairs] == list(range(12))
    held_out = [pair for pair in pairs if pair.unknown]
    assert 3 <= len(held_out) <= 9
    for pair in pairs:
        lacking = [pair.a[s:e] for s, e in pair.hallucinated]
        assert bool(lacking) == (pair in held_out)
        assert all(word.isdigit() for word in lacking)  # the only new ones
    lowered = replace(settings, lower=1.0).build()
    assert all(pair.a == pair.a.lower() and pair.b == pair.b.lower() for pair in lowered)
    assert [p.hallucinated for p in lowered] == [p.hallucinated for p in pairs]
