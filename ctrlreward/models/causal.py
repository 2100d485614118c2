"""Decoder-only language models that score continuations, and fill blanks as continuations.

The targets of a context are merged into a prefix tree that the model reads after it in one row
(`models.prefix_trees`).
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ctrlreward.engine.batching import run_batched, windows
from ctrlreward.engine.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.models.blank_orders import BlankOrders
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.pieces import NOTHING, Integers, Reading, first_word, read_spans
from ctrlreward.models.prefix_trees import (
    Row,
    chain,
    padded_inputs,
    shared_length,
    tree_inputs,
    trees,
)
from ctrlreward.models.tasks import Continuation, Patterns, TokenScores
from ctrlreward.models.tokenization import start_token, warn_truncated

# Most nodes of the tree after a context. Attention over branches that a token doesn't see is
# wasted, but cheap next to the rest of the model.
_MAX_TREE = 512
# Of targets that are long themselves, which share less, where a pass is large: a row is then about
# as long as a text, and fits into one pass with other rows.
_MAX_FREE_TREE = 192


class CausalLM(FrozenModel):
    """Frozen decoder-only model that scores continuations.

    Blanks are ordered as `models.blank_orders.BlankOrders` says. `Blank.ends` is ignored, since no
    end token follows a filling in running text.
    """

    auto_class = AutoModelForCausalLM
    reads_padding = False

    def _prepare(self) -> None:
        self._start = np.array(start_token(self.tokenizer), np.int64)
        self._limit: int | None = getattr(self.model.config, "max_position_embeddings", None)
        self._max_tree = _MAX_TREE if self._check() else 0
        self._max_free = min(
            self._max_tree, _MAX_FREE_TREE if self.batch_tokens > 2**12 else _MAX_TREE
        )
        self._fixed = lru_cache(maxsize=64)(self._build_fixed)

    def _check(self) -> bool:
        """Check the output layer, and return whether the model reads prefix trees."""
        check_output_layer(self.model)
        return _reads_trees(self.model)

    @cached_property
    def _orders(self) -> BlankOrders:
        return BlankOrders(self.tokenizer)

    def answer(self, tasks: Sequence[Continuation | Patterns]) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of each task's targets, in the given order.

        A context is read once for all its targets. A continuation that exceeds the model's context
        loses the tokens farthest from the target first, then the last ones of the target, with a
        warning.
        """
        answers: list[TokenScores] = []
        lengths: list[int] = []
        for window in windows([task.size for task in tasks], self.batch_tokens):
            answers += self._answer(tasks[window.start : window.stop], lengths)
        dropped = "tokens farthest from the target"
        warn_truncated("continuations", lengths, self._limit, dropped)
        return answers

    def _answer(
        self, tasks: Sequence[Continuation | Patterns], lengths: list[int]
    ) -> list[TokenScores]:
        """Answer tasks; add the length of each continuation to `lengths`."""
        asked: list[Continuation] = []
        parts: list[tuple[slice, Sequence[int] | None]] = []
        for task in tasks:
            if isinstance(task, Patterns):
                own, places = self._orders.of(task)
            else:
                own, places = [task], None
            own = [each for each in own if each.targets]
            parts.append((slice(len(asked), len(asked) + len(own)), places))
            asked += own
        groups: dict[Hashable, list[int]] = {}
        for i, each in enumerate(asked):
            # Texts that begin a document share only its start token.
            groups.setdefault(each.context or (each.context, each.targets), []).append(i)
        merged = [_merged([asked[i] for i in members]) for members in groups.values()]
        encoded = self._encode([each for each, _ in merged], lengths)
        rows = [row for own, _ in encoded for row in own]
        ends = np.cumsum([0, *(len(row.tokens) for row in rows)])
        tokens = np.concatenate([np.zeros(0, np.int64), *(row.tokens for row in rows)])
        log_probs = self._read(rows, ends)
        scored: dict[int, TokenScores] = {}
        first = 0
        for members, (_, targets), (read, order) in zip(
            groups.values(), merged, encoded, strict=True
        ):
            span = slice(ends[first], ends[first + len(read)])
            sizes = np.concatenate([row.sizes for row in read])
            found = TokenScores(tokens[span], log_probs[span], sizes)
            if order is not None:
                targets = np.argsort(order)[targets]
            if order is not None or len(targets) > 1:
                found = found.reordered(targets)
            counts = [len(asked[i].targets) for i in members]
            scored |= dict(zip(members, found.split(counts), strict=True))
            first += len(read)
        return [
            TokenScores.joined([scored[i] for i in range(part.start, part.stop)], places)
            for part, places in parts
        ]

    def _read(self, rows: Sequence[Row], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the log-probabilities of the scored tokens of all rows."""
        # One array: small ones between the forward passes would fragment the heap.
        log_probs = np.full(ends[-1], np.nan)

        def score(batch: list[int]) -> list[None]:
            chosen = [rows[i] for i in batch]
            inputs = (tree_inputs if self._max_tree else padded_inputs)(self.model, chosen)
            hidden, _ = states_and_output(self.model, **inputs)
            width = hidden.shape[1]
            states = [row.predicting + place * width for place, row in enumerate(chosen)]
            places = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in batch])
            values = token_log_probs(
                self.model,
                hidden.flatten(0, 1),
                torch.from_numpy(np.concatenate(states)),
                torch.from_numpy(np.concatenate([row.tokens for row in chosen])),
                block=self.block,
            )
            log_probs[places] = values.cpu().numpy()
            return [None] * len(batch)

        lengths = [len(row.ids) for row in rows]
        description = f"{self.name}: {len(rows)} rows"
        run_batched(lengths, self.batch_tokens, score, description, self.padding)
        return log_probs

    def _encode(self, asked: Sequence[Continuation], lengths: list[int]) -> list[_Encoded]:
        """Return the rows of each continuation, piece by piece where that gives the same tokens."""
        fixed = {each.targets: self._fixed(each.targets) for each in asked if each.fixed}
        free = dict.fromkeys(t for each in asked if not each.fixed for t in each.targets)
        begins = [
            fixed[each.targets].begins if each.fixed else ["".join(t) for t in each.targets]
            for each in asked
        ]
        strings: dict[str, None] = {}
        pairs: dict[tuple[str, str], None] = {}
        for each, own in zip(asked, begins, strict=True):
            strings |= dict.fromkeys((*each.context, *own))
            pairs |= dict.fromkeys(pairwise(each.context))
            pairs |= dict.fromkeys((each.context[-1], begin) for begin in own if each.context)
        reading = Reading(self.tokenizer, strings, pairs)
        given = [target for target in free if target[0]]
        spans = read_spans(self.tokenizer, ["".join(target) for target in given])
        starts = dict.fromkeys(free, 0) | {
            target: _count_within(read, len(target[0]))
            for target, (_, read) in zip(given, spans, strict=True)
        }
        encoded = []
        for each, own in zip(asked, begins, strict=True):
            context = each.context
            before = reading.joined(context, self._start, NOTHING)
            if before is None or not all(reading.meets(context[-1], b) for b in own if context):
                before, targets = self._start, self._read_whole(each)
            elif each.fixed:
                targets = fixed[each.targets]
            else:
                ids = [reading[begin].tolist() for begin in own]
                targets = _Targets(ids, [starts[t] for t in each.targets])
            encoded.append(self._rows(before, targets, lengths))
        return encoded

    def _build_fixed(self, targets: tuple[tuple[str, str], ...]) -> _Targets:
        """Return targets that follow many contexts, with their trees."""
        strings = ["".join(target) for target in targets]
        read = read_spans(self.tokenizer, strings)
        starts = [_count_within(r, len(t[0])) for t, (_, r) in zip(targets, read, strict=True)]
        ids = [ids for ids, _ in read]
        words = [first_word(string) for string in strings]
        alone = Reading(self.tokenizer, words)
        begins = all(
            row[: len(alone[w])] == alone[w].tolist() for w, row in zip(words, ids, strict=True)
        )
        forest = trees(ids, starts, self._max_tree)
        return _Targets(ids, starts, tuple(dict.fromkeys(words if begins else strings)), forest)

    def _read_whole(self, asked: Continuation) -> _Targets:
        """Return the targets, each read together with the context."""
        context = "".join(asked.context)
        read = read_spans(self.tokenizer, [context + a + b for a, b in asked.targets])
        starts = [
            _count_within(r, len(context) + len(given))
            for (given, _), (_, r) in zip(asked.targets, read, strict=True)
        ]
        return _Targets([ids for ids, _ in read], starts)

    def _rows(self, before: Integers, targets: _Targets, lengths: list[int]) -> _Encoded:
        """Return the rows of targets after some tokens, and the order of the targets in them."""
        sequences, starts = targets.ids, targets.starts
        if not targets.forest and len(sequences) > 1:
            read = [ids[:start] for ids, start in zip(sequences, starts, strict=True)]
            shared = shared_length(read)
            before = np.concatenate([before, np.array(sequences[0][:shared], np.int64)])
            sequences = [ids[shared:] for ids in sequences]
            starts = [start - shared for start in starts]
        longest = len(before) + max(map(len, sequences)) - 1
        fits = not self._limit or longest <= self._limit
        if len(sequences) > 1 and len(before) and self._max_tree and fits:
            lengths += [longest] * len(sequences)
            rows, order = targets.forest or trees(sequences, starts, self._max_free)
            return [row.after(before) for row in rows], order
        chains = []
        for ids, start in zip(sequences, starts, strict=True):
            # Without a start token, nothing predicts the first token: it is not scored.
            whole = np.concatenate([before, np.array(ids, np.int64)])
            start = max(1, len(before) + start)
            lengths.append(len(whole) - 1)  # the last token is never an input
            if self._limit and lengths[-1] > self._limit:
                dropped = min(lengths[-1] - self._limit, start - 1)
                whole, start = whole[dropped : dropped + self._limit + 1], start - dropped
            chains.append(chain(whole, start))
        return chains, None


def _merged(asked: Sequence[Continuation]) -> tuple[Continuation, npt.NDArray[np.int64]]:
    """Return one continuation for several of one context, and the place of each target in it."""
    if len(asked) == 1 and asked[0].fixed:
        return asked[0], np.arange(len(asked[0].targets))
    places: dict[tuple[str, str], int] = {}
    found = [places.setdefault(t, len(places)) for each in asked for t in each.targets]
    fixed = all(each.fixed for each in asked)
    return Continuation(asked[0].context, tuple(places), fixed), np.array(found)


class _Targets(NamedTuple):
    """Token ids of targets, and the place from which each is scored.

    `begins` are the strings that they begin with, and `forest` their trees with the targets' order,
    where these are known.
    """

    ids: list[list[int]]
    starts: list[int]
    begins: tuple[str, ...] = ()
    forest: tuple[list[Row], list[int]] | None = None


# Rows, and the order of the targets in them, None if it is the given one.
_Encoded: TypeAlias = tuple[list[Row], list[int] | None]


def _count_within(spans: Sequence[tuple[int, int]], characters: int) -> int:
    """Return the number of tokens before the first one that ends after some characters."""
    count = len(spans)
    while count and spans[count - 1][1] > characters:
        count -= 1
    return count


def _reads_trees(model: PreTrainedModel) -> bool:
    """Return True if the branches of a prefix tree do not affect each other in this model.

    This holds where tokens interact through attention only. A recurrence or convolution (Mamba,
    LFM2 and other hybrids) passes state from branch to branch, and ALiBi counts distances along
    the row.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    (branches,), _ = trees([[1, 1, 1, 1], [2, 2, 2, 2]], [0, 0], 6)
    row, alone = branches.after(np.array([0])), chain(np.array([0, 2, 2, 2, 2]), 1)
    with torch.inference_mode():
        expected, _ = states_and_output(model, **padded_inputs(model, [alone]))
        try:
            found, _ = states_and_output(model, **tree_inputs(model, [row]))
        except ValueError:  # Falcon's ALiBi expects a two-dimensional mask
            return False
    difference = found[0, row.predicting[4:]] - expected[0].float()
    # Rounding errors are far smaller than half of the digits.
    return bool(difference.norm() < torch.finfo(model.dtype).eps ** 0.5 * expected.float().norm())
