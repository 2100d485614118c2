from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.recipes.papers.ctc.pair_kinds import KINDS, sample_rows, textrank

DOCUMENT = (
    "The old lighthouse stands on a rock near the harbour. A keeper lived in the lighthouse for "
    "forty years. Seagulls scream. When the harbour froze, the keeper of the lighthouse walked to "
    "the village for bread. Nobody knows his name. The village keeps his lamp in its museum."
)


def ranks(document: str) -> np.ndarray:
    """TextRank as a linear system: common words over log lengths, damping 0.85."""
    words = [
        sentence.lower().strip(".").replace(",", "").split()
        for sentence in split_sentences(document)
    ]
    words = [[w for w in row if w not in ENGLISH_STOP_WORDS] for row in words]
    n = len(words)
    weights = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            overlap = len({*words[i]} & {*words[j]})
            if overlap and i != j:
                weights[i, j] = overlap / (math.log(len(words[i])) + math.log(len(words[j])))
    weights[weights.sum(axis=1) == 0] = 1  # from a sentence without links to any
    weights /= weights.sum(axis=1, keepdims=True)
    return np.linalg.solve(np.eye(n) - 0.85 * weights.T, np.full(n, 0.15 / n))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_summary_has_the_sentences_of_the_highest_rank(count: int) -> None:
    best = sorted(np.argsort(-ranks(DOCUMENT))[:count])
    expected = " ".join(split_sentences(DOCUMENT)[i] for i in best)
    assert textrank(DOCUMENT, count) == expected
    assert textrank("Seagulls scream.", count) == "Seagulls scream."


RECORD = {
    "text": "I paint boats at the weekend.",
    "context": "I live by the sea. I like to paint.\nMy boat is blue.\nI have two cats.",
    "history": "What do you do for fun?",
    "reference": "The keeper is remembered in a museum.",
}


def example(kind: str, seed: int = 0) -> tuple[str, str]:
    row = tuple(RECORD[key] for key in KINDS[kind].keys) or (DOCUMENT,)
    return KINDS[kind].example(row, random.Random(seed))


def test_each_kind_has_a_text_and_what_supports_it() -> None:
    assert example("transfer") == (DOCUMENT, DOCUMENT)
    assert example("reference") == (RECORD["reference"], RECORD["reference"])
    context = f"{RECORD['context']}\n\n\n{RECORD['history']}"
    assert example("dialog") == (RECORD["text"], context)
    facts = ["I live by the sea.", "I like to paint.", "My boat is blue.", "I have two cats."]
    counts = set()
    for seed in range(20):
        text, context = example("dialog_fact", seed)
        assert context == RECORD["context"]
        chosen = [fact for fact in facts if fact in text]
        assert text == " ".join(chosen)
        counts.add(len(chosen))
        summary, document = example("summary", seed)
        assert document == DOCUMENT
        assert summary in {textrank(DOCUMENT, count) for count in (1, 2, 3)}
    assert counts == {1, 2, 3}


def test_rows_of_records_are_distinct_long_enough_and_not_held_out(tmp_path: Path) -> None:
    other = {**RECORD, "text": "I never eat fish on Fridays."}
    held_out = {**RECORD, "text": "My sister sings in a choir."}
    short = {**RECORD, "text": "No."}
    rows = [RECORD, other, RECORD, held_out, short]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held_out").write_text("my sister  sings in a choir.\n")
    settings = ([str(tmp_path / "rows")], [str(tmp_path / "held_out")])
    found = sample_rows("dialog", *settings, 2, 3, 0)
    assert {row[0] for row in found} == {RECORD["text"], other["text"]}
    assert {row[1:] for row in found} == {(RECORD["context"], RECORD["history"])}
    with pytest.raises(ValueError, match=r"2 records of 3 words or more, fewer than 3. Add files"):
        sample_rows("dialog", *settings, 3, 3, 0)
    with pytest.raises(ValueError, match=r"must be a JSON record with a string for reference, as"):
        sample_rows("reference", [str(tmp_path / "held_out")], [], 1, 1, 0)
