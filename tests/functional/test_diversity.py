from __future__ import annotations

import csv
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Tokenizer

from ctrlreward.functional.diversity import distinct_n, repetition

sequences = st.lists(st.lists(st.integers(0, 4), max_size=8), max_size=6)


def brute_force(rows: list[list[int]], n: int) -> float:
    """Count the unique n-grams of one group with a linear search."""
    seen: list[list[int]] = []
    for row in rows:
        for start in range(len(row) - n + 1):
            if row[start : start + n] not in seen:
                seen.append(row[start : start + n])
    tokens = sum(map(len, rows))
    return len(seen) / tokens if tokens else math.nan


@given(sequences, st.integers(1, 4))
def test_one_group_equals_brute_force(rows: list[list[int]], n: int) -> None:
    assert distinct_n(rows, n) == pytest.approx(brute_force(rows, n), nan_ok=True)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 4), max_size=8))))
def test_groups_are_averaged(rows: list[tuple[str, list[int]]]) -> None:
    groups = [group for group, _ in rows]
    each = [brute_force([ids for g, ids in rows if g == group], 2) for group in sorted({*groups})]
    present = [value for value in each if not math.isnan(value)]
    expected = sum(present) / len(present) if present else math.nan
    value = distinct_n([ids for _, ids in rows], 2, groups)
    assert value == pytest.approx(expected, nan_ok=True)
    assert math.isnan(value) or 0 <= value <= 1


@given(st.lists(st.integers(0, 3), max_size=10), st.integers(1, 4))
def test_repetition_is_the_share_of_grams_seen_before(ids: list[int], n: int) -> None:
    grams = [ids[start : start + n] for start in range(len(ids) - n + 1)]
    seen = [gram in grams[:i] for i, gram in enumerate(grams)]
    expected = sum(seen) / len(seen) if seen else math.nan
    assert repetition(ids, n) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("file", "published"),
    [("generate_prior.txt", (42.0, 79.7, 88.4)), ("generate_prior_extend.txt", (42.4, 79.4, 88.1))],
)
def test_released_outputs_give_the_published_figures(data_dir, file, published) -> None:
    with open(data_dir / "prompts35.csv", encoding="utf-8") as table:
        # Outputs start with the prefix, but some drop its final punctuation mark.
        prefixes = [row["prompt"].rstrip(".,") for row in csv.DictReader(table)]
    lines = (data_dir / "multicontrol" / file).read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)[1] for line in lines]
    groups = [max((p for p in prefixes if t.startswith(p)), key=len) for t in texts]
    assert len(texts) == 1400
    assert {groups.count(prefix) for prefix in prefixes} == {40}

    ids = GPT2Tokenizer.from_pretrained(data_dir / "tokenizers" / "gpt2")(texts).input_ids
    for n, percent in enumerate(published, start=1):
        assert 100 * distinct_n(ids, n, groups) == pytest.approx(percent, abs=0.1)
