from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.recipes.alignment.pair_file import PairFile, build_pairs, read_pairs
from ctrlreward.recipes.alignment.pairs import (
    as_template,
    edit_lightly,
    make_pairs,
    mask_spans,
    not_in,
    refill,
)
from ctrlreward.recipes.alignment.span_filling import Fillings, Template
from ctrlreward.recipes.text_files import read_texts

TEXTS = [
    "the soup was cold and nobody said sorry .",
    "we loved the view , but the room was small !",
    "our guide knew every stone of the old town .",
    "the bus came late again , so we walked home .",
    "her second novel is better than the first .",
    "a quiet place with good coffee and kind people .",
    "they never answered the phone all day .",
]


class Counter:
    """Fills each blank with its number and the seed; fails for one text."""

    def __init__(self) -> None:
        self.calls = 0

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        self.calls += 1
        return [
            None if "novel" in "".join(t.parts) else tuple(f"new{i} {seed % 7}" for i in t.sizes)
            for t in templates
        ]


# Masking


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


def test_a_word_that_was_masked_and_comes_again_is_aligned() -> None:
    text = "we liked the very good food there ."
    spans = [(9, 27)]  # "the very good food"
    whole, places = refill(text, spans, ("The bad food",))
    assert whole == "we liked The bad food there ."
    lacking = not_in(whole, places, ["the very good food"])
    assert [whole[start:end] for start, end in lacking] == ["bad"]


def test_what_one_text_gives() -> None:
    text, other, stranger = "the soup was cold .", "soup was cold .", "the bus was late ."
    pairs = make_pairs(3, (text, other, stranger), [(9, 13)], ("warm",))
    shown = [(p.a, p.b, [p.a[s:e] for s, e in p.hallucinated]) for p in pairs]
    assert shown == [
        ("soup was cold .", "the soup was cold .", []),
        ("soup was warm .", "the soup was cold .", ["warm"]),
        ("soup was cold .", "soup was warm .", ["cold"]),
        ("soup was cold .", "soup was .", ["cold"]),
        ("the soup was cold .", "the bus was late .", ["soup", "cold"]),
    ]
    # What b still holds is no loss, and a comma never is.
    both = "the soup , the bread ."
    shorter = make_pairs(3, (both, both, stranger), [(4, 20)], None)[1]
    assert shorter.b == "the ."
    assert [both[s:e] for s, e in shorter.hallucinated] == ["soup", "bread"]
    assert {pair.source for pair in pairs} == {3}
    assert len(make_pairs(3, (text, other, stranger), [(9, 13)], None)) == 3


@pytest.mark.parametrize("seed", range(8))
def test_a_light_edit_brings_no_new_word(seed: int) -> None:
    for text in TEXTS:
        edited = edit_lightly(text, random.Random(seed)).split()
        assert set(edited) <= set(text.split())
        lost = set(text.split()) - set(edited)
        assert lost <= {"a", "the", "so"}


def test_sides_of_a_joint_change_places() -> None:
    text = "we loved it , but rooms were small !"
    edits = {edit_lightly(text, random.Random(seed)) for seed in range(20)}
    assert edits == {text, "rooms were small , but we loved it !"}


# The file


def build(file: Path, texts: Sequence[str] = TEXTS, seed: int = 0) -> Counter:
    filler = Counter()
    build_pairs(str(file), texts, lambda: filler, lambda: None, seed=seed, chunk=2)
    return filler


def test_a_file_that_was_cut_off_becomes_the_same(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert build(whole).calls == 4

    class Killed(Counter):
        def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().fill(templates, seed)

    with pytest.raises(KeyboardInterrupt):
        build_pairs(str(cut), TEXTS, Killed, lambda: None, chunk=2)
    assert 0 < cut.stat().st_size < whole.stat().st_size
    with cut.open("a") as file:
        file.write('{"source": 4, "a": "the bu')  # and in the middle of a line
    assert build(cut).calls == 2
    assert cut.read_bytes() == whole.read_bytes()
    assert build(cut).calls == 0
    assert {pair.source for pair in read_pairs(str(cut))} == set(range(len(TEXTS)))


def test_spans_of_the_file_are_the_words_that_b_lacks(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    # A word that stands twice in a text is not the same in both places.
    build(file, [text for text in TEXTS if len(set(text.split())) == len(text.split())])
    pairs = read_pairs(str(file))
    assert len({len(pair.hallucinated) for pair in pairs}) > 3
    for pair in pairs:
        lacking = [word for word in re.findall(r"\w+", pair.a) if word not in pair.b.split()]
        assert [pair.a[start:end] for start, end in pair.hallucinated] == lacking


def test_a_line_ends_at_nothing_else(tmp_path: Path) -> None:
    odd = [f"{TEXTS[0]} so{mark}there" for mark in ("\u2028", "\u2029", "\x85", "\x0b")]
    (tmp_path / "texts").write_text("\n".join([*TEXTS, *odd]), encoding="utf-8")
    texts = read_texts([str(tmp_path / "texts")], [], 11, (4, None), seed=0)
    assert sorted(texts) == sorted([*TEXTS, *odd])
    build(tmp_path / "pairs.jsonl", texts)
    pairs = read_pairs(str(tmp_path / "pairs.jsonl"))
    assert {pair.source for pair in pairs} == set(range(11))
    assert set(odd) <= {pair.b for pair in pairs}


def test_a_file_that_another_builds_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"

    class Tried(Counter):
        def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
            with pytest.raises(Timeout):
                FileLock(f"{file}.lock", timeout=0).acquire()
            return super().fill(templates, seed)

    build_pairs(str(file), TEXTS, Tried, lambda: None)
    with FileLock(f"{file}.lock", timeout=0):  # given back
        pass


def test_a_file_that_does_not_fit_its_state_is_refused(tmp_path: Path) -> None:
    file, state = tmp_path / "pairs.jsonl", tmp_path / "pairs.jsonl.state"
    file.write_text("of somebody else")
    with pytest.raises(ValueError, match=r"pairs.jsonl is there without pairs.jsonl.state"):
        build(file)
    assert file.read_text() == "of somebody else"
    file.unlink()
    build(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    told = rf"pairs.jsonl has {len(whole) - 20} bytes, {len(whole)} by pairs.jsonl.state: put the w"
    with pytest.raises(ValueError, match=told):
        build(file)
    assert file.read_bytes() == whole[:-20]
    file.unlink()
    with pytest.raises(ValueError, match=rf"has 0 bytes, {len(whole)} by pairs.jsonl.state"):
        build(file)
    state.unlink()
    build(file)
    assert file.read_bytes() == whole


def test_a_run_that_was_killed_in_its_first_chunk_is_gone_on_with(tmp_path: Path) -> None:
    class Full:
        def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
            raise KeyboardInterrupt

    file, whole = tmp_path / "pairs.jsonl", tmp_path / "whole.jsonl"
    with pytest.raises(KeyboardInterrupt):
        build_pairs(str(file), TEXTS, Full, lambda: None, chunk=2)
    build(file)
    build(whole)
    assert file.read_bytes() == whole.read_bytes()


def test_a_finished_file_is_only_read(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    build(file)
    (tmp_path / "pairs.jsonl.lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert build(file).calls == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"count": 1}, "count = 1: give 2 or more"),
        ({"max_spans": 0}, "max_spans = 0: give 1 or more"),
        (
            {"mask_share": (0.5, 0.2)},
            r"mask_share = \(0.5, 0.2\): give two shares of 0 to 1 in order",
        ),
    ],
)
def test_settings_out_of_range(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairFile(**{"file": "pairs.jsonl", "texts": [], "count": 2, **setting})


def test_another_seed_is_another_file(tmp_path: Path) -> None:
    build(tmp_path / "pairs.jsonl")
    with pytest.raises(ValueError, match=r"begun with other texts or settings: remove it and pair"):
        build(tmp_path / "pairs.jsonl", seed=1)
    build(tmp_path / "other.jsonl", seed=1)
    assert read_pairs(str(tmp_path / "other.jsonl")) != read_pairs(str(tmp_path / "pairs.jsonl"))


def test_a_paraphrase_takes_the_place_of_the_light_edit(tmp_path: Path) -> None:
    file = str(tmp_path / "pairs.jsonl")

    def louder(texts: Sequence[str]) -> list[str]:
        return [text.upper() if "bus" not in text else "" for text in texts]

    build_pairs(file, TEXTS, Counter, lambda: louder)
    first = {pair.source: pair for pair in reversed(read_pairs(file))}
    assert [first[i].a for i in range(7)] == [t if "bus" in t else t.upper() for t in TEXTS]
    assert [first[i].b for i in range(7)] == TEXTS
