from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.words import separate_words, split_words_and_marks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Great food!", "great food !"),
        ("I wasn't happy; it's late.", "i was n't happy ; it 's late ."),
        ("They’re 2,000 (or 3.50)...", "they 're 2,000 ( or 3.50 ) ..."),
        ('She said: "no".', 'she said : " no " .'),
        ("o'clock 'tis the cooks' own", "o'clock 'tis the cooks' own"),
        (" \n", ""),
    ],
)
def test_words_and_marks_are_apart(text: str, expected: str) -> None:
    assert separate_words(text) == expected
    assert split_words_and_marks(text) == expected.split()


@given(st.text("aB1't sn.,!? ’", max_size=20))
def test_nothing_is_lost_and_twice_is_once(text: str) -> None:
    once = separate_words(text)
    assert separate_words(once) == once
    letters = text.lower().replace("’", "'")
    assert once.replace(" ", "") == "".join(letters.split())
