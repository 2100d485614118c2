"""Prefix trees: token sequences with common prefixes, merged so that each prefix is read once.

A decoder-only model reads a whole tree in one row: each token attends to its ancestors only (a
four-dimensional attention mask), and its position is its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class PrefixTree(NamedTuple):
    """Token sequences merged into one row.

    Attributes:
        ids: Token id of each node, parents before children, shape (nodes,).
        parents: Index of each node's parent, -1 at the roots, shape (nodes,).
        paths: For each sequence of the tree its index among all sequences, and the nodes of its
            tokens.
    """

    ids: list[int]
    parents: list[int]
    paths: list[tuple[int, list[int]]]


def build_prefix_trees(sequences: Sequence[Sequence[int]], max_unshared: int) -> list[PrefixTree]:
    """Merge sequences into prefix trees.

    In lexicographic order, neighbours share the longest prefixes. A sequence joins the tree of its
    predecessor where that saves at least a quarter of its tokens; otherwise a row of its own is
    cheaper than attention over the nodes that it does not share.

    Args:
        sequences: Token ids; may repeat, may be empty.
        max_unshared: Largest number of nodes in the tree that a joining sequence does not share,
            so that no tree has more nodes than these plus its longest sequence. With 0 each tree is
            a plain row, shared only by sequences that are equal to it or a prefix of it.
    """
    trees: list[PrefixTree] = []
    previous: Sequence[int] = ()
    for index in sorted(range(len(sequences)), key=lambda i: list(sequences[i])):
        sequence = sequences[index]
        shared = _common_prefix(previous, sequence)
        if not trees or 4 * shared < len(sequence) or len(trees[-1].ids) - shared > max_unshared:
            trees.append(PrefixTree([], [], []))
            shared = 0
        tree = trees[-1]
        path = tree.paths[-1][1][:shared] if shared else []
        for token in sequence[shared:]:
            tree.parents.append(path[-1] if path else -1)
            path.append(len(tree.ids))
            tree.ids.append(token)
        tree.paths.append((index, path))
        previous = sequence
    return trees


def depths(tree: PrefixTree) -> Ints:
    """Return the depth of each node, which is its position for the model, shape (nodes,)."""
    result = np.zeros(len(tree.ids), dtype=np.int64)
    for node, parent in enumerate(tree.parents):
        result[node] = result[parent] + 1 if parent >= 0 else 0
    return result


def ancestor_mask(tree: PrefixTree) -> Bools:
    """Return the attention mask: each node sees itself and its ancestors, shape (nodes, nodes)."""
    mask = np.zeros((len(tree.ids), len(tree.ids)), dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
