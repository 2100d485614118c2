"""Paragraphs of books as they are printed and wrapped, and the rule for names."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.recipes.papers.textual_transfer.running_text import replace_names, split_paragraphs

BOOK = """\ufeffThe Project Gutenberg eBook of Our Test
*** START OF THE PROJECT GUTENBERG EBOOK OUR TEST ***

THE LAMP
BY
NOBODY
CHAPTER I. In which a lamp is lit
The lamp was lit; it was a light-
house lamp, and a well-
worn one. Every lighthouse had one, said
I.

II
\u2018It\u2019s late,\u2019 he said. \u2018Give \u2019em the _old_ lamp\u2014or
THE NEW ONE, please.\u2019

*** END OF THE PROJECT GUTENBERG EBOOK OUR TEST ***
Licence.
"""


def test_book_loses_its_wrapping() -> None:
    assert split_paragraphs(BOOK.replace("\n", "\r\n")) == split_paragraphs(BOOK)
    assert split_paragraphs(BOOK) == [
        "The lamp was lit; it was a lighthouse lamp, and a well-worn one. "
        "Every lighthouse had one, said I.",
        '"It\'s late," he said. "Give \'em the old lamp - or THE NEW ONE, please."',
    ]


WORDS = st.text("abcdefgh", min_size=1, max_size=12)


@given(st.lists(st.lists(WORDS, min_size=1).map(" ".join), min_size=1), st.integers(12, 80))
def test_wrapping_at_any_width_is_undone(paragraphs: list[str], width: int) -> None:
    assert split_paragraphs("\n\n".join(textwrap.fill(p, width) for p in paragraphs)) == paragraphs


@pytest.mark.parametrize(
    ("tokenized", "typeset"),
    [
        ('It is a two @-@ part " show " , at 1 @,@ 200 .', 'It is a two-part "show", at 1,200.'),
        ('" We won ! " he said . " So , " he said .', '"We won!" he said. "So," he said.'),
        ("It is 3 @.@ 5 km : too far ?", "It is 3.5 km: too far?"),
    ],
)
def test_tokenized_text_is_set_as_printed(tokenized: str, typeset: str) -> None:
    assert split_paragraphs(f" \n = Title = \n {tokenized} \n = = End = = \n") == [typeset]
    assert split_paragraphs(typeset) == [typeset]


def test_capital_letters_tell_names() -> None:
    sentences = [
        "And Anna Berg left the old house in Rostock.",
        "Then Anna, who hates Rostock, met Mr. Hope at the Bell.",
        "Anna's hope was a bell in Rostock on a Monday with English fog, and a house is a house.",
        "House by house, they saw Mrs. Van Berg.",
    ]
    assert replace_names(sentences) == [
        "And -PERSON- left the old house in -LOCATION-.",
        "Then -PERSON-, who hates -LOCATION-, met -PERSON- at the Bell.",
        "-PERSON-'s hope was a bell in -LOCATION- on a Monday with English fog, and a house is a "
        "house.",
        "House by house, they saw -PERSON-.",
    ]
    assert replace_names([]) == []


def test_a_word_that_is_also_a_small_one_is_no_name() -> None:
    often = ["he saw Rose there." for _ in range(19)]
    small = "a rose there."
    assert replace_names([*often, "he saw Rose there.", small])[0] == "he saw -PERSON- there."
    assert replace_names([*often, small])[0] == "he saw Rose there."
