from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.prefix_trees import Row, tree_inputs, trees

# Few tokens, so that sequences begin alike.
SEQUENCE = st.lists(st.integers(0, 2), max_size=8)
SCORED = st.lists(SEQUENCE.flatmap(lambda s: st.tuples(st.just(s), st.integers(0, len(s)))))
MOST = st.integers(1, 20)
BEFORE = st.lists(st.integers(3, 5), min_size=1, max_size=4)
MODEL: Any = SimpleNamespace(dtype=torch.float32, device=torch.device("cpu"))


def paths(row: Row, inputs: dict[str, torch.Tensor], place: int) -> list[list[int]]:
    """Return the tokens that each token of a row sees, from the first to itself."""
    ids = [*row.before.tolist(), *row.tree.ids.tolist()]
    assert inputs["input_ids"][place, : len(ids)].tolist() == ids
    seen = inputs["attention_mask"][place, 0] == 0
    return [[ids[k] for k in np.flatnonzero(seen[node])] for node in range(len(ids))]


@given(BEFORE, SCORED, MOST)
def test_each_token_is_predicted_from_what_its_sequence_has_before_it(
    before: list[int], scored: list[tuple[list[int], int]], most: int
) -> None:
    if not scored:
        return
    forest = trees(scored, most)
    rows = [Row(np.array(before), tree) for tree in forest.trees]
    inputs = tree_inputs(MODEL, rows)
    expected = [(i, k) for i, (ids, start) in enumerate(scored) for k in range(start, len(ids))]
    assert forest.tokens.tolist() == [scored[i][0][k] for i, k in expected]
    assert forest.sizes.tolist() == [len(ids) - start for ids, start in scored]
    places = [place for tree in forest.trees for place in tree.places.tolist()]
    assert sorted(places) == [*range(len(expected))]
    for number, row in enumerate(rows):
        seen = paths(row, inputs, number)
        for node, place in zip(row.tree.predicting + len(before), row.tree.places, strict=True):
            i, k = expected[place]
            assert seen[node] == [*before, *scored[i][0][:k]]
            assert inputs["position_ids"][number, node] == len(seen[node]) - 1
