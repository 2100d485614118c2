"""Training pairs of aligners: masking, kinds, fillings, and the file that keeps them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.recipes.papers.ctc.pairs import (
    KINDS,
    AlignmentData,
    PairFile,
    Paraphraser,
    Span,
    SpanFiller,
    edit_lightly,
    farthest,
    make_pairs,
    mask_spans,
    read_pair_file,
    refill,
    sample_rows,
    textrank,
)

TEXTS = [
    "the soup was cold and nobody said sorry .",
    "we loved the view , but the room was small !",
    "our guide knew every stone of the old town .",
    "the bus came late again , so we walked home .",
    "her second novel is better than the first .",
    "a quiet place with good coffee and kind people .",
    "they never answered the phone all day .",
]

# Masking

SENTENCE = "the old man saw a small boat ."


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
    whole, places = refill(text, spans, tuple(" ".join(run) for run in masked))
    assert (whole, places) == (text, spans)
    assert mask_spans("great !", random.Random(seed), (0.5, 1.0), 2) == ()


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


def test_a_light_edit_adds_no_word_and_swaps_sides_of_a_conjunction() -> None:
    for text, seed in product(TEXTS, range(8)):
        edited = edit_lightly(text, random.Random(seed)).split()
        assert set(edited) <= set(text.split())
        assert set(text.split()) - set(edited) <= {"a", "the", "so"}
    text = "we loved it , but rooms were small !"
    edits = {edit_lightly(text, random.Random(seed)) for seed in range(20)}
    assert edits == {text, "rooms were small , but we loved it !"}


# Kinds

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
    keys, made = KINDS[kind]
    return made(tuple(RECORD[key] for key in keys) or (DOCUMENT,), random.Random(seed))


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
    found = sample_rows("dialog", *settings, 2, 0)
    assert {row[0] for row in found} == {RECORD["text"], other["text"]}
    assert {row[1:] for row in found} == {(RECORD["context"], RECORD["history"])}
    with pytest.raises(ValueError, match="rows"):
        sample_rows("dialog", *settings, 3, 0)


# Models


def filler_of(folder: str) -> SpanFiller:
    return SpanFiller(folder, "cpu", None, 1.0, 0.95)


def test_a_model_fills_every_span(tiny_llama: Callable[[str], str]) -> None:
    filler = filler_of(tiny_llama("abcdefghijklmnopqrstuvwxyz .!,"))
    # Spans follow no letter: random letters would extend the word.
    texts = ["it rained was cold , again said sorry .", "what a view ! so we went !"] * 4
    spans: list[Sequence[Span]] = [((0, 9), (21, 26)), ((14, 24),)] * 4
    fillings = filler.fill(texts, spans, seed=3)
    assert fillings == filler.fill(texts, spans, seed=3)
    assert fillings != filler.fill(texts, spans, seed=4)
    filled = [(row, of, text) for row, of, text in zip(fillings, spans, texts, strict=True) if row]
    assert len(filled) > 1
    for row, of, text in filled:
        for filling, (start, end) in zip(row, of, strict=True):
            assert 1 <= len(filling.split()) <= len(text[start:end].split()) + 1
            assert "\n" not in filling


def test_a_paraphrase_is_the_farthest_of_a_beam(tiny_bart: str) -> None:
    text = "the soup was cold today"
    near, far = "the soup was cold", "today we had a cold soup"
    assert farthest(text, [near, far, text]) == far
    assert farthest(text, [near]) == near
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_bart).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bart)
    ids = tokenizer("The food was good.", return_tensors="pt").input_ids
    written = model.generate(
        ids, num_beams=4, num_return_sequences=3, do_sample=False, max_new_tokens=2 * ids.shape[1]
    )
    candidates = [t.strip() for t in tokenizer.batch_decode(written, skip_special_tokens=True)]
    expected = farthest("The food was good.", candidates)
    assert Paraphraser(tiny_bart, "cpu", None, 3)("The food was good.") == expected


# The file


@pytest.fixture
def settings(tmp_path: Path, tiny_llama: Callable[[str], str]) -> dict[str, Any]:
    (tmp_path / "texts").write_text("\n".join(TEXTS), encoding="utf-8")
    model = tiny_llama("abcdefghijklmnopqrstuvwxyz .!,")
    texts = [str(tmp_path / "texts")]
    return {"texts": texts, "count": len(TEXTS), "chunk_size": 2, "infiller": model}


def test_an_interrupted_build_is_resumed(settings: dict[str, Any], tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    PairFile(str(whole), **settings).build()
    lines = whole.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 4
    cut.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed within a line
    PairFile(str(cut), **settings).build()
    assert cut.read_bytes() == whole.read_bytes()
    before = whole.read_bytes()
    for name, value in {"temperature": 0.5, "labels": "fillings", "seed": 1}.items():
        with pytest.raises(ValueError, match=name):
            PairFile(str(whole), **{**settings, name: value}).build()
    Path(settings["texts"][0]).write_text("\n".join([*TEXTS[1:], "the play was long and loud ."]))
    with pytest.raises(ValueError, match="texts"):
        PairFile(str(whole), **settings).build()
    assert whole.read_bytes() == before


def test_all_pairs_of_a_text_are_in_one_split(settings: dict[str, Any], tmp_path: Path) -> None:
    pairs = PairFile(str(tmp_path / "pairs.jsonl"), **settings)
    data = AlignmentData(pairs, validation_share=0.3, batch_size=2)
    data.prepare_data()
    data.setup("fit")
    loaders = data.train_dataloader(), data.val_dataloader()
    train, held_out = ([pair for batch in loader for pair in batch] for loader in loaders)
    assert len({pair.source for pair in held_out}) == 2  # of seven
    assert not {pair.source for pair in train} & {pair.source for pair in held_out}
    assert sorted(train + held_out) == sorted(read_pair_file(pairs.file))


def test_a_kind_decides_what_b_is(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"text": text, "context": f"fact {i}", "history": "hm"} for i, text in enumerate(TEXTS)]
    Path(settings["texts"][0]).write_text("\n".join(map(json.dumps, rows)))
    kind = {"kind": "dialog", "labels": "fillings", "extra_pairs": False}
    PairFile(str(tmp_path / "pairs.jsonl"), **settings, **kind).build()
    pairs = read_pair_file(str(tmp_path / "pairs.jsonl"))
    assert 1 <= len(pairs) <= len(TEXTS)  # none where the model gave no filling
    assert {pair.b for pair in pairs} <= {f"fact {i}\n\n\nhm" for i in range(len(TEXTS))}
