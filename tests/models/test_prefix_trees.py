from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.causal import Row, chain, padded_inputs, tree_inputs, trees

# Few tokens, so that sequences begin alike.
SEQUENCE = st.lists(st.integers(0, 2), max_size=8)
SCORED = st.lists(SEQUENCE.flatmap(lambda s: st.tuples(st.just(s), st.integers(0, len(s)))))
MOST = st.integers(1, 20)
BEFORE = st.lists(st.integers(3, 5), min_size=1, max_size=4)
MODEL: Any = SimpleNamespace(dtype=torch.float32, device=torch.device("cpu"))


def paths(row: Row, inputs: dict[str, torch.Tensor], place: int) -> list[list[int]]:
    """Return the tokens that each node sees, from the first to itself."""
    seen = inputs["attention_mask"][place, 0] == 0
    return [[int(row.ids[k]) for k in np.flatnonzero(seen[node])] for node in range(len(row.ids))]


@given(BEFORE, SCORED, MOST)
def test_each_token_is_predicted_from_what_its_sequence_has_before_it(
    before: list[int], scored: list[tuple[list[int], int]], most: int
) -> None:
    if not scored:
        return
    sequences, starts = [s for s, _ in scored], [start for _, start in scored]
    rows, order = trees(sequences, starts, most)
    assert sorted(order) == list(range(len(scored)))
    whole = [row.after(np.array(before)) for row in rows]
    inputs, left = tree_inputs(MODEL, whole), iter(order)
    for place, row in enumerate(whole):
        assert inputs["input_ids"][place, : len(row.ids)].tolist() == row.ids.tolist()
        seen = paths(row, inputs, place)
        ends = np.cumsum(row.sizes)
        for end, size in zip(ends, row.sizes, strict=True):
            i = next(left)
            assert row.tokens[end - size : end].tolist() == sequences[i][starts[i] :]
            for k, node in enumerate(row.predicting[end - size : end]):
                assert seen[node] == [*before, *sequences[i][: starts[i] + k]]
                assert inputs["position_ids"][place, node] == len(seen[node]) - 1
    assert not list(left)


@given(SCORED, MOST)
def test_no_beginning_is_twice_in_a_tree_and_none_is_too_large(
    scored: list[tuple[list[int], int]], most: int
) -> None:
    if not scored:
        return
    sequences = [s for s, _ in scored]
    rows, _ = trees(sequences, [0] * len(scored), most)
    inputs = tree_inputs(MODEL, rows)
    for place, row in enumerate(rows):
        seen = paths(row, inputs, place)
        assert len({tuple(path) for path in seen}) == len(row.ids)
        assert len(row.ids) <= max(most, *(len(s) - 1 for s in sequences))


@given(SEQUENCE.filter(lambda s: len(s) > 1), st.data())
def test_a_chain_is_a_tree_of_one_sequence(sequence: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(1, len(sequence)))
    (row,), _ = trees([sequence[1:]], [start - 1], 20)
    for one, other in zip(
        chain(np.array(sequence), start), row.after(np.array(sequence[:1])), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_tree_by_hand() -> None:
    (row,), order = trees([[5, 6, 7, 1], [5, 8, 1], [5, 6, 1]], [1, 2, 0], 9)
    assert order == [2, 0, 1]
    assert row.ids.tolist() == [5, 6, 7, 8]
    assert row.depths.tolist() == [0, 1, 2, 1]
    assert row.ends.tolist() == [4, 3, 3, 4]
    assert row.predicting.tolist() == [-1, 0, 1, 0, 1, 2, 3]
    assert row.tokens.tolist() == [5, 6, 1, 6, 7, 1, 1]
    assert row.sizes.tolist() == [3, 3, 1]
    inputs = tree_inputs(MODEL, [row])
    seen = (inputs["attention_mask"][0, 0] == 0).int().tolist()
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]


def test_padding_sees_itself_alone() -> None:
    rows = [chain(np.array(ids), 1) for ids in ([1, 2, 3, 4], [1, 2])]
    seen = tree_inputs(MODEL, rows)["attention_mask"][1, 0] == 0
    assert seen.int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert padded_inputs(MODEL, rows)["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
