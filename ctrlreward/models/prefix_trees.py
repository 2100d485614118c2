"""Prefix trees: token sequences that share their beginnings, laid out in one row of a model.

Nodes stand in depth-first order, so that the descendants of a node follow it without a gap: a token
attends to the earlier ones whose descendants it is among, which two comparisons find for all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ctrlreward.engine.batching import pad_rows
from ctrlreward.models.pieces import Integers


class Row(NamedTuple):
    """Tokens that a model reads in one row, and the ones that it scores.

    Attributes:
        ids: Tokens of the nodes, shape (nodes,).
        depths: Position of each node in its sequence, shape (nodes,).
        ends: Index after the last descendant of each node, shape (nodes,).
        predicting: Node that predicts each scored token, shape (scored,).
        tokens: The scored tokens, target by target, shape (scored,).
        sizes: Number of scored tokens of each target, shape (targets,).
    """

    ids: Integers
    depths: Integers
    ends: Integers
    predicting: Integers
    tokens: Integers
    sizes: Integers

    def after(self, chain: Integers) -> Row:
        """Return the tree after the tokens of a chain; a predicting node of -1 is its last."""
        length = len(chain)
        ends = np.full(length, length + len(self.ids))
        return Row(
            np.concatenate([chain, self.ids]),
            np.concatenate([np.arange(length), self.depths + length]),
            np.concatenate([ends, self.ends + length]),
            self.predicting + length,
            self.tokens,
            self.sizes,
        )


def chain(ids: Integers, start: int) -> Row:
    """Return the row of one sequence that is scored from `start`, 1 or more."""
    nodes, scored = np.arange(len(ids) - 1), ids[start:]
    ends = np.full(len(nodes), len(nodes))
    return Row(ids[:-1], nodes, ends, nodes[start - 1 :], scored, np.array([len(scored)]))


def shared_length(sequences: Sequence[list[int]]) -> int:
    """Return the length of the longest common prefix."""
    first, last = min(sequences), max(sequences)
    pairs = enumerate(zip(first, last, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))


def trees(
    sequences: Sequence[list[int]], starts: Sequence[int], most: int
) -> tuple[list[Row], list[int]]:
    """Return trees of at most `most` nodes, or of one sequence, and their targets' order.

    Each sequence is scored from its start. Its last token is predicted, not read, and the first one
    is predicted by node -1. In lexicographic order, a sequence shares most with its predecessor.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    rows: list[Row] = []
    path: list[int] = []
    previous: list[int] = []
    begun = _Tree()
    for i in order:
        sequence = sequences[i][:-1]
        shared = shared_length([previous, sequence])
        if begun.ids and len(begun.ids) + len(sequence) - shared > most:
            rows.append(begun.row())
            begun, shared = _Tree(), 0
        del path[shared:]
        for token in sequence[shared:]:
            begun.parents.append(path[-1] if path else -1)
            path.append(len(begun.ids))
            begun.ids.append(token)
        scored = sequences[i][starts[i] :]
        begun.predicting += [-1, *path][starts[i] : len(sequences[i])]
        begun.tokens += scored
        begun.sizes.append(len(scored))
        previous = sequence
    return [*rows, begun.row()], order


class _Tree:
    """Tree to which sequences are added."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.predicting: list[int] = []
        self.tokens: list[int] = []
        self.sizes: list[int] = []

    def row(self) -> Row:
        """Return the row of the sequences that were added."""
        depths, ends = [0] * len(self.ids), list(range(1, len(self.ids) + 1))
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                depths[node] = depths[parent] + 1
        for node in reversed(range(len(self.ids))):
            if (parent := self.parents[node]) >= 0:
                ends[parent] = max(ends[parent], ends[node])
        arrays = self.ids, depths, ends, self.predicting, self.tokens, self.sizes
        return Row(*(np.array(values, np.int64) for values in arrays))


def padded_inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return padded ids and attention mask of rows that are chains."""
    ids, mask = pad_rows([row.ids for row in rows], 0, model.device)
    return {"input_ids": ids, "attention_mask": mask}


def tree_inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return padded ids, positions, and the mask by which each node attends to its ancestors."""
    width = max(1, *(len(row.ids) for row in rows))
    # Padding is attended to by nothing but itself: a row of attention over nothing would be NaN.
    table = np.zeros((3, len(rows), width), np.int64)
    table[2] = np.arange(1, width + 1)
    for place, row in enumerate(rows):
        table[:, place, : len(row.ids)] = row.ids, row.depths, row.ends
    ids, positions, ends = torch.from_numpy(table).to(model.device)
    nodes = torch.arange(width, device=model.device)
    hidden = (nodes[:, None] >= ends[:, None, :]) | (nodes[:, None] < nodes)
    mask = hidden.new_zeros(hidden.shape, dtype=model.dtype)
    return {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": mask.masked_fill_(hidden, torch.finfo(model.dtype).min)[:, None],
    }
