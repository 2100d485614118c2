"""Prefix trees: sequences that share their beginnings, read in one row of a decoder."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ctrlreward.models.batching import pad_rows
from ctrlreward.models.output_layer import states_and_output, token_log_probs
from ctrlreward.models.tokenization import NOTHING, Integers, Scored


class Tree(NamedTuple):
    """Sequences that share their beginnings, in depth-first order, and their scored tokens.

    The scored ones are in `places` among the scored tokens of all targets, one after the other.
    """

    ids: Integers  # (nodes,)
    depths: Integers  # (nodes,), in the node's sequence
    ends: Integers  # (nodes,), index after the node's last descendant
    predicting: Integers  # (scored,), node that predicts the token; -1 for what is before the tree
    places: Integers  # (scored,)


class Row(NamedTuple):
    """What a model reads in one row: tokens, and a tree after them.

    The scored tokens of the tree's forest are those from `first` among all.
    """

    before: Integers
    tree: Tree
    first: int = 0

    @property
    def size(self) -> int:
        return len(self.before) + len(self.tree.ids)

    @property
    def depth(self) -> int:
        """Depth of the deepest node of the tree, or of the last token."""
        return len(self.before) + int(self.tree.depths.max(initial=0))


class Forest(NamedTuple):
    """Trees that score some targets, and the scored tokens, target by target."""

    trees: list[Tree]
    tokens: Integers  # (scored,)
    sizes: Integers  # (targets,), number of scored tokens


def trees(targets: Sequence[Scored], most: int) -> Forest:
    """Return trees of at most `most` nodes, or of one sequence and its beginnings each.

    A target is a sequence and the place from which it is scored. The first token of a sequence is
    predicted by node -1, its last one is not read.
    """
    sizes = [max(0, len(sequence) - start) for sequence, start in targets]
    first = [*accumulate(sizes, initial=0)]
    tables: list[Any] = []  # trees of lists
    path: list[int] = []  # nodes of the previous sequence
    previous: list[int] = []
    for i in sorted(range(len(targets)), key=lambda i: targets[i][0]):
        sequence, start = targets[i]
        read = sequence[:-1]
        shared = 0
        while shared < min(len(previous), len(read)) and previous[shared] == read[shared]:
            shared += 1
        size = len(tables[-1].ids) if tables else 0
        new = len(read) - shared
        # A sequence that continues all nodes of a tree stays in it: the tree is then a chain.
        if not tables or (size > shared and new and size + new > most):
            tables.append(Tree._make([] for _ in Tree._fields))
            path, shared, size = [], 0, 0
        ids, depths, ends, predicting, places = tables[-1]
        for node in path[shared:]:
            ends[node] = size
        path = [*path[:shared], *range(size, size + len(read) - shared)]
        ids += read[shared:]
        depths += range(shared, len(read))
        ends += [0] * (len(read) - shared)
        predicting += [-1, *path][start : len(sequence)]
        places += range(first[i], first[i + 1])
        previous = read
    found = [Tree(*(np.array(values, np.int64) for values in table)) for table in tables]
    for tree in found:
        tree.ends[tree.ends == 0] = len(tree.ids)
    tokens = [token for sequence, start in targets for token in sequence[start:]]
    return Forest(found, np.array(tokens, np.int64), np.array(sizes, np.int64))


def padded_inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return padded ids and attention mask of rows whose trees are chains."""
    chains = [np.concatenate([row.before, row.tree.ids]) for row in rows]
    ids, mask = pad_rows(chains, 0, model.device)
    return {"input_ids": ids, "attention_mask": mask}


def tree_inputs(model: PreTrainedModel, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return padded ids, positions, and the mask by which each node attends to its ancestors."""
    width = max(1, *(row.size for row in rows))
    # Padding is attended to by nothing but itself: a row of attention over nothing would be NaN.
    table = np.zeros((3, len(rows), width), np.int64)
    table[2] = np.arange(1, width + 1)
    for place, (before, tree, _) in enumerate(rows):
        start, end = len(before), len(before) + len(tree.ids)
        table[:, place, :start] = before, np.arange(start), np.full(start, end)
        table[:, place, start:end] = tree.ids, tree.depths + start, tree.ends + start
    ids, positions, ends = torch.from_numpy(table).to(model.device)
    nodes = torch.arange(width, device=model.device)
    hidden = (nodes[:, None] >= ends[:, None, :]) | (nodes[:, None] < nodes)
    mask = hidden.new_zeros(hidden.shape, dtype=model.dtype)
    return {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": mask.masked_fill_(hidden, torch.finfo(model.dtype).min)[:, None],
    }


def score_rows(
    model: PreTrainedModel,
    hidden: Tensor,
    rows: Sequence[Row],
    tokens: Integers,
    log_probs: npt.NDArray[np.float64],
    block: int,
) -> None:
    """Write the log-probabilities of the scored tokens of rows, given their padded states.

    `hidden` has shape (rows, nodes, width), `tokens` and `log_probs` (scored,) are of all rows.
    """
    width = hidden.shape[1]
    predicting = [row.tree.predicting + len(row.before) for row in rows]
    states = np.concatenate([nodes + k * width for k, nodes in enumerate(predicting)])
    places = np.concatenate([row.tree.places + row.first for row in rows])
    values = token_log_probs(
        model,
        hidden.flatten(0, 1),
        torch.from_numpy(states),
        torch.from_numpy(tokens[places]),
        block=block,
    )
    log_probs[places] = values.cpu().numpy()


def tree_depth(model: PreTrainedModel) -> float:
    """Return the depth to which the branches of a prefix tree do not affect each other.

    It is 0 in a recurrence or convolution (Mamba, LFM2), and with ALiBi. The mask of a tree
    replaces the window of an attention layer, so that deeper trees would be read in another way.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return 0
    ((branches,), *_) = trees([([1, 1, 1, 1], 0), ([2, 2, 2, 2], 0)], 6)
    ((alone,), *_) = trees([([0, 2, 2, 2, 2], 1)], 0)
    with torch.inference_mode():
        expected, _ = states_and_output(model, **padded_inputs(model, [Row(NOTHING, alone)]))
        try:
            row = Row(np.array([0]), branches)
            found, _ = states_and_output(model, **tree_inputs(model, [row]))
        except ValueError:  # Falcon's ALiBi expects a two-dimensional mask
            return 0
    difference = found[0, branches.predicting[4:] + 1] - expected[0].float()
    # Rounding errors are far smaller than half of the digits.
    same = difference.norm() < torch.finfo(model.dtype).eps ** 0.5 * expected.float().norm()
    config = model.config.get_text_config()
    sizes = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min(filter(None, sizes), default=math.inf) if same else 0
