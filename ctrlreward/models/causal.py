"""Decoder-only language models that score continuations.

Continuations with common prefixes are merged into prefix trees, so that each prefix is read once. A
model reads a whole tree in one row: each token attends to its ancestors only (a four-dimensional
attention mask), and its position is its depth.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from ctrlreward.engine.batching import pad_rows, run_batched, to_device
from ctrlreward.engine.output_layer import (
    Targets,
    check_output_layer,
    hidden_states,
    target_log_probs,
)
from ctrlreward.models.control_tokens import real_ids, text_reader
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.tasks import Continuation, TokenScores, empty_scores
from ctrlreward.models.tokenization import start_token, warn_truncated

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


# Most nodes of a row that a token does not attend to. Attention over them is wasted, but cheap next
# to the rest of the model.
_MAX_UNSHARED = 512


class CausalLM(FrozenModel):
    """Frozen decoder-only model that scores continuations."""

    auto_class = AutoModelForCausalLM

    def _prepare(self) -> None:
        check_output_layer(self.model)
        self._start = start_token(self.tokenizer)
        self._limit: int | None = getattr(self.model.config, "max_position_embeddings", None)
        self._max_unshared = _MAX_UNSHARED if _reads_trees(self.model) else 0

    def log_probs(self, continuations: Sequence[Continuation]) -> list[TokenScores]:
        """Return the log-probabilities of each target's tokens, in the given order.

        Common prefixes of continuations are read once. A continuation that exceeds the model's
        context loses the tokens farthest from the target first, then the last ones of the target,
        with a warning.
        """
        if not continuations:
            return []
        untruncated = self._encode(continuations)
        lengths = [len(ids) - 1 for ids, _ in untruncated]  # the last token is never an input
        warn_truncated("continuations", lengths, self._limit, "tokens farthest from the target")
        encoded = [self._truncate(ids, start) for ids, start in untruncated]
        trees = build_prefix_trees([ids[:-1] for ids, _ in encoded], self._max_unshared)
        scores = empty_scores([ids[start:] for ids, start in encoded])

        def forward(batch: list[int]) -> list[None]:
            self._score_trees([trees[i] for i in batch], encoded, scores)
            return [None] * len(batch)

        run_batched(
            [len(tree.ids) for tree in trees],
            self.batch_tokens,
            forward,
            f"{self.name}: {len(encoded)} continuations",
        )
        return scores

    def _encode(self, continuations: Sequence[Continuation]) -> list[tuple[list[int], int]]:
        """Encode context and target as one text; also return where the target starts."""
        distinct = list(dict.fromkeys(c.context + c.target for c in continuations))
        reader = text_reader(self.tokenizer, distinct)
        batch = reader(
            distinct, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = batch.input_ids
        if reader is not self.tokenizer:
            ids = [real_ids(self.tokenizer, row) for row in ids]
        rows = dict(zip(distinct, zip(ids, batch.offset_mapping, strict=True), strict=True))
        encoded = []
        for context, target in continuations:
            ids, offsets = rows[context + target]
            start = len(ids)
            while start and offsets[start - 1][1] > len(context):
                start -= 1
            # Without a start token, nothing predicts the first token: it is not scored.
            encoded.append(([*self._start, *ids], max(1, len(self._start) + start)))
        return encoded

    def _truncate(self, ids: list[int], start: int) -> tuple[list[int], int]:
        """Truncate a sequence to the model's context; also return the new start of the target."""
        if not self._limit:
            return ids, start
        dropped = min(max(0, len(ids) - 1 - self._limit), start - 1)
        return ids[dropped : dropped + self._limit + 1], start - dropped

    def _score_trees(
        self,
        trees: list[PrefixTree],
        encoded: list[tuple[list[int], int]],
        scores: list[TokenScores],
    ) -> None:
        """Write the log-probabilities of the targets of all sequences in the trees to `scores`."""
        inputs = _tree_inputs if self._max_unshared else _row_inputs
        hidden = hidden_states(self.model, **inputs(self.model, trees))
        targets = {}
        for row, tree in enumerate(trees):
            first = row * hidden.shape[1]
            for index, path in tree.paths:
                ids, start = encoded[index]
                targets[index] = Targets([first + node for node in path[start - 1 :]], ids[start:])
        log_probs = target_log_probs(self.model, hidden.flatten(0, 1), list(targets.values()))
        for index, values in zip(targets, log_probs, strict=True):
            scores[index].log_probs[:] = values


def _row_inputs(model: PreTrainedModel, trees: list[PrefixTree]) -> dict[str, Tensor]:
    """Return padded ids and attention mask of trees that are plain rows."""
    ids, mask = pad_rows([tuple(tree.ids) for tree in trees], 0, model.device)
    return {"input_ids": ids, "attention_mask": mask}


def _tree_inputs(model: PreTrainedModel, trees: list[PrefixTree]) -> dict[str, Tensor]:
    """Return padded ids, positions, and the mask by which each node attends to its ancestors."""
    ids, _ = pad_rows([tuple(tree.ids) for tree in trees], 0, model.device)
    width = ids.shape[1]
    positions = torch.zeros(ids.shape, dtype=torch.long)
    # Padding attends to itself, since a row of attention over nothing would be NaN.
    mask = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, tree in enumerate(trees):
        nodes = len(tree.ids)
        positions[row, :nodes] = torch.from_numpy(depths(tree))
        mask[row, :nodes, :nodes] = torch.from_numpy(ancestor_mask(tree))
    blocked = torch.finfo(model.dtype).min
    return {
        "input_ids": ids,
        "position_ids": to_device(positions, model.device),
        "attention_mask": to_device(torch.where(mask, 0.0, blocked).to(model.dtype), model.device)[
            :, None
        ],
    }


def _reads_trees(model: PreTrainedModel) -> bool:
    """Return True if the branches of a prefix tree do not affect each other in this model.

    This holds where tokens interact through attention only. A recurrence or convolution (Mamba,
    LFM2 and other hybrids) carries state from branch to branch, and ALiBi counts distances along
    the row.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    (tree,) = build_prefix_trees([[0, 1, 1, 1], [0, 2, 2, 2]], max_unshared=3)
    (row,) = build_prefix_trees([[0, 2, 2, 2]], max_unshared=0)
    with torch.inference_mode():
        alone = hidden_states(model, **_row_inputs(model, [row]))[0].float()
        try:
            beside = hidden_states(model, **_tree_inputs(model, [tree]))[0, tree.paths[-1][1]]
        except ValueError:  # Falcon's ALiBi expects a two-dimensional mask
            return False
    # Rounding errors are far smaller than half of the digits.
    return bool((beside - alone).norm() < torch.finfo(model.dtype).eps ** 0.5 * alone.norm())
