from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_aligners import SENTENCES

from ctrlreward.recipes.papers.ctc.labelled_pairs import (
    as_template,
    edit_lightly,
    make_pairs,
    mask_spans,
    missing_words,
    refill,
)

TEXTS = SENTENCES[:7]


@given(
    words=st.integers(2, 30),
    seed=st.integers(0, 10**6),
    low=st.floats(0, 0.5),
    width=st.floats(0, 0.5),
    max_spans=st.integers(1, 5),
)
def test_masked_spans_are_runs_of_words_with_words_between(
    words: int, seed: int, low: float, width: float, max_spans: int
) -> None:
    text = " ".join(f"w{i}" for i in range(words)) + " ."
    spans = mask_spans(text, random.Random(seed), (low, low + width), max_spans)
    masked = [text[start:end].split() for start, end in spans]
    assert 1 <= len(spans) <= max_spans
    assert 1 <= sum(map(len, masked)) <= words - 1
    assert sum(map(len, masked)) <= max(1, (low + width) * words + 0.5)
    for (_, end), (start, _) in pairwise(spans):
        assert text[end:start].strip()
    template = as_template(text, spans)
    assert template.sizes == tuple(map(len, masked))
    whole, places = refill(text, spans, tuple(" ".join(run) for run in masked))
    assert (whole, places) == (text, spans)


def test_one_word_is_never_masked() -> None:
    assert mask_spans("great !", random.Random(0), (0.5, 1.0), 2) == ()


def test_a_filling_that_repeats_a_masked_word_is_aligned() -> None:
    text = "we liked the very good food there ."
    spans = [(9, 27)]  # "the very good food"
    whole, places = refill(text, spans, ("The bad food",))
    assert whole == "we liked The bad food there ."
    missing = missing_words(whole, places, ["the very good food"])
    assert [whole[start:end] for start, end in missing] == ["bad"]


def test_pairs_of_one_text() -> None:
    text, other, stranger = "the soup was cold .", "soup was cold .", "the bus was late ."
    pairs = make_pairs(3, (text, text, other, stranger), [(9, 13)], ("warm",))
    shown = [(p.a, p.b, [p.a[s:e] for s, e in p.hallucinated]) for p in pairs]
    assert shown == [
        ("soup was cold .", "the soup was cold .", []),
        ("soup was warm .", "the soup was cold .", ["warm"]),
        ("soup was cold .", "soup was warm .", ["cold"]),
        ("soup was cold .", "soup was .", ["cold"]),
        ("the soup was cold .", "the bus was late .", ["soup", "cold"]),
    ]
    # A word that b still contains is not missing, and a comma never is.
    both = "the soup , the bread ."
    shorter = make_pairs(3, (both, both, both, stranger), [(4, 20)], None)[1]
    assert shorter.b == "the ."
    assert [both[s:e] for s, e in shorter.hallucinated] == ["soup", "bread"]
    assert {pair.source for pair in pairs} == {3}
    assert len(make_pairs(3, (text, text, other, stranger), [(9, 13)], None)) == 3


def test_the_papers_pair_alone_with_whole_fillings_labelled() -> None:
    four = ("the soup was cold .", "cold soup and a rude waiter .", "soup was cold .", "late bus .")
    spans = [(0, 4), (9, 13)]
    (pair,) = make_pairs(3, four, spans, ("Soup", "very cold"), "fillings", extra_pairs=False)
    assert (pair.a, pair.b) == ("Soup was very cold .", four[1])
    assert [pair.a[start:end] for start, end in pair.hallucinated] == ["very cold"]
    by_word = make_pairs(3, four, spans, ("Soup", "very cold"))
    assert [by_word[1].a[start:end] for start, end in by_word[1].hallucinated] == ["very"]
    assert [pair.b for pair in by_word] == [four[1], four[1], pair.a, "was .", four[3]]
    assert make_pairs(3, four, spans, None, "fillings", extra_pairs=False) == []


@pytest.mark.parametrize("seed", range(8))
def test_a_light_edit_adds_no_word(seed: int) -> None:
    for text in TEXTS:
        edited = edit_lightly(text, random.Random(seed)).split()
        assert set(edited) <= set(text.split())
        lost = set(text.split()) - set(edited)
        assert lost <= {"a", "the", "so"}


def test_sides_of_a_conjunction_are_swapped() -> None:
    text = "we loved it , but rooms were small !"
    edits = {edit_lightly(text, random.Random(seed)) for seed in range(20)}
    assert edits == {text, "rooms were small , but we loved it !"}
