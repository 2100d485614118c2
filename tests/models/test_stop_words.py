from __future__ import annotations

from pathlib import Path

from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS


def test_covers_nltks_list_except_four_words(data_dir: Path) -> None:
    published = set((data_dir / "stopwords_english.txt").read_text(encoding="utf-8").split())
    assert published - ENGLISH_STOP_WORDS == {"ma", "o", "y", "should've"}


def test_has_no_content_words_and_is_in_lower_case() -> None:
    content = "good time people like one new know food say go get make see look never always"
    assert not ENGLISH_STOP_WORDS & {*content.split(), *".,!?'-", ""}
    assert all(word == word.lower().strip() for word in ENGLISH_STOP_WORDS)
