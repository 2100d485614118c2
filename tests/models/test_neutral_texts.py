from __future__ import annotations

import random

from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.scorers.task import Task


def test_the_texts_are_the_same_in_every_call_and_leave_the_generators_alone() -> None:
    random.seed(1)
    state = random.getstate()
    assert neutral_texts() == neutral_texts()
    assert random.getstate() == state
    assert len(set(neutral_texts())) == 16
    assert {len(text.split()) for text in neutral_texts()[8:]} == {10}


def test_no_text_contains_a_word_of_a_built_in_task() -> None:
    words = {w.strip(".,;").lower() for text in neutral_texts() for w in text.split()}
    for name in ("sentiment", "topic"):
        for verbalizers in Task.load(name).verbalizers.values():
            assert not words & set(verbalizers)
