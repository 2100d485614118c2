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
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from ctrlreward.engine.batching import pad_rows, run_batched
from ctrlreward.engine.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.models.control_tokens import real_ids, text_reader
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.models.tokenization import start_token, warn_truncated


class PrefixTree(NamedTuple):
    """Token sequences merged into one row.

    `ids` and `parents` have shape (nodes,); parents come before children and are -1 at the roots.
    `paths` has each sequence's index among all, and the nodes of its tokens.
    """

    ids: list[int]
    parents: list[int]
    paths: list[tuple[int, list[int]]]


def build_prefix_trees(sequences: Sequence[Sequence[int]], max_unshared: int) -> list[PrefixTree]:
    """Merge sequences into prefix trees.

    In lexicographic order, neighbours share the longest prefixes. A sequence joins the tree of its
    predecessor where that saves at least a quarter of its tokens; otherwise a separate row is
    cheaper than attention over the nodes that it does not share. It leaves at most `max_unshared`
    nodes unshared, so that no tree has more than these plus its longest sequence; with 0 each tree
    is a plain row, shared only by its prefixes.
    """
    trees: list[PrefixTree] = []
    previous: Sequence[int] = ()
    for index in sorted(range(len(sequences)), key=lambda i: list(sequences[i])):
        sequence = sequences[index]
        shared = 0
        for known, token in zip(previous, sequence, strict=False):
            if known != token:
                break
            shared += 1
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


# Most nodes of a row that a token does not attend to. Attention over them is wasted, but cheap next
# to the rest of the model.
_MAX_UNSHARED = 512


class CausalLM(FrozenModel):
    """Frozen decoder-only model that scores continuations."""

    auto_class = AutoModelForCausalLM
    reads_padding = False

    def _prepare(self) -> None:
        self._start = start_token(self.tokenizer)
        self._limit: int | None = getattr(self.model.config, "max_position_embeddings", None)
        self._max_unshared = _MAX_UNSHARED if self._check() else 0

    def _check(self) -> bool:
        """Check the output layer, and return whether the model reads prefix trees."""
        check_output_layer(self.model)
        return _reads_trees(self.model)

    def log_probs(self, continuations: Sequence[Continuation]) -> list[TokenScores]:
        """Return the log-probabilities of each target's tokens, in the given order.

        Common prefixes of continuations are read once. A continuation that exceeds the model's
        context loses the tokens farthest from the target first, then the last ones of the target,
        with a warning.
        """
        if not continuations:
            return []
        encoded = self._encode(continuations)
        trees = build_prefix_trees([ids[:-1] for ids, _ in encoded], self._max_unshared)
        inputs = tree_inputs if self._max_unshared else _row_inputs
        tokens = np.array([token for ids, start in encoded for token in ids[start:]], np.int64)
        ends = np.cumsum([len(ids) - start for ids, start in encoded])
        # One array: small ones between the forward passes would fragment the heap.
        log_probs = np.full(len(tokens), np.nan)

        def score_trees(batch: list[int]) -> list[None]:
            chosen = [trees[i] for i in batch]
            read = inputs(self.model, chosen)
            hidden, _ = states_and_output(self.model, **read)
            states: list[int] = []
            places: list[int] = []
            for row, tree in enumerate(chosen):
                first = row * hidden.shape[1]
                for index, path in tree.paths:
                    predicting = path[encoded[index][1] - 1 :]
                    states += [first + node for node in predicting]
                    places += range(ends[index] - len(predicting), ends[index])
            values = token_log_probs(
                self.model,
                hidden.flatten(0, 1),
                torch.tensor(states, dtype=torch.long),
                torch.from_numpy(tokens[places]),
            )
            log_probs[places] = values.cpu().numpy()
            return [None] * len(batch)

        run_batched(
            [len(tree.ids) for tree in trees],
            self.batch_tokens,
            score_trees,
            f"{self.name}: {len(encoded)} continuations",
        )
        parts = (np.split(array, ends[:-1]) for array in (tokens, log_probs))
        return list(map(TokenScores, *parts))

    def _encode(self, continuations: Sequence[Continuation]) -> list[tuple[list[int], int]]:
        """Return context and target as one text, truncated, and where the target starts."""
        distinct = list(dict.fromkeys(c.context + c.target for c in continuations))
        reader = text_reader(self.tokenizer, distinct)
        batch = reader(
            distinct, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = batch.input_ids
        if reader is not self.tokenizer:
            ids = [real_ids(self.tokenizer, row) for row in ids]
        rows = dict(zip(distinct, zip(ids, batch.offset_mapping, strict=True), strict=True))
        encoded, lengths = [], []
        for context, target in continuations:
            ids, offsets = rows[context + target]
            start = len(ids)
            while start and offsets[start - 1][1] > len(context):
                start -= 1
            ids = [*self._start, *ids]
            # Without a start token, nothing predicts the first token: it is not scored.
            start = max(1, len(self._start) + start)
            lengths.append(len(ids) - 1)  # the last token is never an input
            if self._limit and lengths[-1] > self._limit:
                dropped = min(lengths[-1] - self._limit, start - 1)
                ids, start = ids[dropped : dropped + self._limit + 1], start - dropped
            encoded.append((ids, start))
        if self._limit and max(lengths) > self._limit:
            warn_truncated("continuations", lengths, self._limit, "tokens farthest from the target")
        return encoded


def _row_inputs(model: PreTrainedModel, trees: list[PrefixTree]) -> dict[str, Tensor]:
    """Return padded ids and attention mask of trees that are plain rows."""
    ids, mask = pad_rows([tuple(tree.ids) for tree in trees], 0, model.device)
    return {"input_ids": ids, "attention_mask": mask}


def tree_inputs(model: PreTrainedModel, trees: list[PrefixTree]) -> dict[str, Tensor]:
    """Return padded ids, positions, and the mask by which each node attends to its ancestors."""
    width = max(1, *(len(tree.ids) for tree in trees))
    ids, positions = np.zeros((2, len(trees), width), dtype=np.int64)
    # Padding attends to itself, since a row of attention over nothing would be NaN.
    seen = np.tile(np.eye(width, dtype=np.bool_), (len(trees), 1, 1))
    for row, tree in enumerate(trees):
        ids[row, : len(tree.ids)] = tree.ids
        for node, parent in enumerate(tree.parents):
            if parent >= 0:
                positions[row, node] = positions[row, parent] + 1
                seen[row, node] |= seen[row, parent]
    # A byte per pair of tokens on its way to the device, and the mask made there.
    hidden = ~torch.from_numpy(seen).to(model.device)
    mask = hidden.new_zeros(hidden.shape, dtype=model.dtype)
    return {
        "input_ids": torch.from_numpy(ids).to(model.device),
        "position_ids": torch.from_numpy(positions).to(model.device),
        "attention_mask": mask.masked_fill_(hidden, torch.finfo(model.dtype).min)[:, None],
    }


def _reads_trees(model: PreTrainedModel) -> bool:
    """Return True if the branches of a prefix tree do not affect each other in this model.

    This holds where tokens interact through attention only. A recurrence or convolution (Mamba,
    LFM2 and other hybrids) passes state from branch to branch, and ALiBi counts distances along
    the row.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    (tree,) = build_prefix_trees([[0, 1, 1, 1], [0, 2, 2, 2]], max_unshared=3)
    (row,) = build_prefix_trees([[0, 2, 2, 2]], max_unshared=0)
    with torch.inference_mode():
        alone, _ = states_and_output(model, **_row_inputs(model, [row]))
        try:
            beside, _ = states_and_output(model, **tree_inputs(model, [tree]))
        except ValueError:  # Falcon's ALiBi expects a two-dimensional mask
            return False
    difference = beside[0, tree.paths[-1][1]] - alone[0].float()
    # Rounding errors are far smaller than half of the digits.
    return bool(difference.norm() < torch.finfo(model.dtype).eps ** 0.5 * alone.float().norm())
