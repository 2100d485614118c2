from __future__ import annotations

import pytest

from ctrlreward.text.words import split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The food  was\tGOOD .\n", ["the", "food", "was", "good", "."]),
        ("great.", ["great."]),
        (" ", []),
    ],
)
def test_splits_at_white_space_and_lowers_case(text: str, words: list[str]) -> None:
    assert split_words(text) == words
