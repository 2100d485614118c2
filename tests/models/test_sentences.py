from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.sentences import find_splitter, split_sentences

# Arbitrary text, and text dense in the marks and abbreviations that the rules look for.
fragments = st.lists(
    st.sampled_from([*"Dr. e.g. U.S. etc. Hi so … ... ! ?” ) 汤。 ！".split(), " ", "\n"])
)
texts = st.text() | fragments.map("".join)


@given(texts)
def test_only_whitespace_is_lost(text: str) -> None:
    pieces = split_sentences(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece and piece == piece.strip() for piece in pieces)


@given(texts)
def test_a_sentence_is_not_split_again(text: str) -> None:
    assert all(split_sentences(piece) == [piece] for piece in split_sentences(text))


@pytest.mark.parametrize(
    "sentences",
    [
        [],
        ["one without an end"],
        ["It rains.", "We stay!", "Do you?", "Good"],
        ["Dr. Adams met Mr. Bell.", "They spoke."],
        ["He moved to the U.S. in May.", "She did not."],
        ["The book by J. R. Hartley is out.", "So am I.", "Bye."],
        ["Apples, pears, etc. are cheap.", "They have plums, etc.", "Buy some."],
        ["We met at 5 p.m. on Monday.", "It was 6 p.m.", "We left."],
        ["Use a tool, e.g. a saw.", "That is, i.e. Not by hand."],
        ["“Really?” she said.", "“Yes.” he said.", "He nodded."],
        ["He called it “good.”", "I did not."],
        ["Well... it works.", "Or not...", "We see."],
        ["It costs 3.50 at shop.com today.", "no capital follows."],
        ["He left (too late.)", "She stayed."],
        ["No space after this.It is one piece.", "This is not."],
    ],
)
def test_splits(sentences: list[str]) -> None:
    assert split_sentences("  ".join(sentences)) == sentences


@pytest.mark.parametrize("space", ["", "\n"])
def test_splits_chinese_and_japanese(space: str) -> None:
    sentences = "今天下雨。 你去吗？！ 「好！」 他说3.5元。 おいしい。 没有".split()
    assert split_sentences(space.join(sentences)) == sentences


def test_splitters_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_splitter(str.split) == str.split
    assert find_splitter(None) is find_splitter("rules") is split_sentences
    nltk = SimpleNamespace(sent_tokenize=lambda text: text.split("|"))
    monkeypatch.setitem(sys.modules, "nltk", nltk)
    assert find_splitter("nltk")("One.|Two.") == ["One.", "Two."]
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(ImportError, match="nltk"):
        find_splitter("nltk")
    with pytest.raises(ValueError, match="sentence_splitter"):
        find_splitter("punkt")
