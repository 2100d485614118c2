from __future__ import annotations

from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.scorers.task import Task


def test_no_text_contains_a_word_of_a_built_in_task() -> None:
    words = {w.strip(".,;").lower() for text in neutral_texts() for w in text.split()}
    for name in ("sentiment", "topic"):
        for verbalizers in Task.load(name).verbalizers.values():
            assert not words & set(verbalizers)
