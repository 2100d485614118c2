from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.causal import PrefixTree, build_prefix_trees, tree_inputs

# Few tokens, so that sequences begin alike.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=12)
MAX_UNSHARED = st.integers(0, 20)
MODEL: Any = SimpleNamespace(dtype=torch.float32, device=torch.device("cpu"))


@given(SEQUENCES, MAX_UNSHARED)
def test_every_path_spells_its_sequence(sequences: list[list[int]], unshared: int) -> None:
    trees = build_prefix_trees(sequences, unshared)
    paths = {index: [tree.ids[n] for n in path] for tree in trees for index, path in tree.paths}
    assert paths == dict(enumerate(sequences))
    assert sum(len(tree.paths) for tree in trees) == len(sequences)


@given(SEQUENCES, MAX_UNSHARED)
def test_a_token_sees_itself_and_what_its_sequence_has_before_it(
    sequences: list[list[int]], unshared: int
) -> None:
    trees = build_prefix_trees(sequences, unshared)
    if not trees:
        return
    inputs = tree_inputs(MODEL, trees)
    for row, tree in enumerate(trees):
        assert inputs["input_ids"][row, : len(tree.ids)].tolist() == tree.ids
        seen, positions = inputs["attention_mask"][row, 0] == 0, inputs["position_ids"][row]
        for _, path in tree.paths:
            for place, node in enumerate(path):
                assert np.flatnonzero(seen[node]).tolist() == path[: place + 1]
                assert positions[node] == place


@given(SEQUENCES, MAX_UNSHARED)
def test_no_beginning_is_held_twice_in_a_tree(sequences: list[list[int]], unshared: int) -> None:
    for tree in build_prefix_trees(sequences, unshared):
        used = {node for _, path in tree.paths for node in path}
        assert used == set(range(len(tree.ids)))
        assert len({*zip(tree.ids, tree.parents, strict=True)}) == len(tree.ids)


@given(SEQUENCES, MAX_UNSHARED)
def test_a_tree_has_so_many_nodes_more_than_its_longest_sequence(
    sequences: list[list[int]], unshared: int
) -> None:
    for tree in build_prefix_trees(sequences, unshared):
        assert len(tree.ids) <= max(len(path) for _, path in tree.paths) + unshared


@given(SEQUENCES)
def test_without_unshared_trees_are_plain_rows(sequences: list[list[int]]) -> None:
    for tree in build_prefix_trees(sequences, 0):
        assert tree.parents == list(range(-1, len(tree.ids) - 1))


def test_one_long_beginning_is_held_once_however_long() -> None:
    text = [7] * 6000
    (tree,) = build_prefix_trees([[*text, 1, 2], [*text, 1, 3], text, [*text, 1, 2]], 4)
    assert len(tree.ids) == 6003


def test_a_tree_by_hand() -> None:
    (tree,) = build_prefix_trees([[5, 6, 7], [5, 8], [5, 6]], 2)
    assert tree == PrefixTree(
        [5, 6, 7, 8], [-1, 0, 1, 0], [(2, [0, 1]), (0, [0, 1, 2]), (1, [0, 3])]
    )
    inputs = tree_inputs(MODEL, [tree])
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 1]]
    seen = (inputs["attention_mask"][0, 0] == 0).int().tolist()
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize(("shared", "trees"), [(3, 1), (2, 2)])
def test_a_tree_is_joined_where_it_saves_a_quarter(shared: int, trees: int) -> None:
    assert (
        len(build_prefix_trees([[1] * shared + [2], [1] * shared + [3] * (12 - shared)], 512))
        == trees
    )
