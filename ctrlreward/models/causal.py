"""Decoder-only language models that score continuations, and fill blanks as continuations.

The targets of a context are merged into a prefix tree that the model reads after it in one row, in
depth-first order: a token attends to the earlier nodes whose descendants it is among.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.models.batching import in_windows, run_batched
from ctrlreward.models.control_tokens import Piece, Pieces, control_of, written_pieces
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.output_layer import check_output_layer, states_and_output
from ctrlreward.models.prefix_trees import (
    Forest,
    Row,
    padded_inputs,
    score_rows,
    tree_depth,
    tree_inputs,
    trees,
)
from ctrlreward.models.tasks import (
    TEXT_SLOT,
    Blank,
    Continuation,
    Patterns,
    Target,
    TokenScores,
)
from ctrlreward.models.tokenization import (
    NOTHING,
    Integers,
    Scored,
    chunked,
    meets_apart,
    read_chunks,
    read_scored,
    reads_apart,
    spans,
    start_token,
    warn_truncated,
)

log = logging.getLogger(__name__)

# Most nodes of the tree after a context. Attention over branches that a token doesn't see is
# wasted, but cheap next to the rest of the model.
_MAX_TREE = 512
# Of targets that are long themselves, which share less, where a pass is large: a row is then about
# as long as a text, and fits into one pass with other rows.
_MAX_LONG_TREE, _LONG = 192, 16


class CausalLM(FrozenModel):
    """Frozen decoder-only model that scores continuations, and blanks in `BlankOrders`."""

    auto_class = AutoModelForCausalLM

    def _prepare(self) -> None:
        self._start = np.array(start_token(self.tokenizer), np.int64)
        self._limit: int | None = getattr(self.model.config, "max_position_embeddings", None)
        check_output_layer(self.model)
        self._reach = tree_depth(self.model)
        self._apart = reads_apart(self.tokenizer)

    @cached_property
    def _orders(self) -> BlankOrders:
        return BlankOrders(self.tokenizer)

    def answer(self, tasks: Sequence[Continuation | Patterns]) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of each task's targets, in the given order.

        A continuation that exceeds the model's context loses the tokens farthest from the target
        first, then the last ones of the target, with a warning.
        """
        lengths: list[int] = []
        answer = partial(self._answer, lengths=lengths)
        answers = in_windows(tasks, [task.size for task in tasks], answer, self.batch_tokens)
        dropped = "tokens farthest from the target"
        warn_truncated("continuations", lengths, self._limit, dropped)
        return answers

    def _answer(
        self, tasks: Sequence[Continuation | Patterns], lengths: list[int]
    ) -> list[TokenScores]:
        """Answer tasks; add the length of each continuation to `lengths`."""
        groups: dict[Hashable, _Group] = {}
        counts = []
        first = 0
        for task in tasks:
            asked: Sequence[tuple[Continuation, Sequence[int]]]
            if isinstance(task, Patterns):
                asked = self._orders.of(task)
            else:
                asked = [(task, range(len(task.targets)))]
            for (context, targets, chat), places in asked:
                # Texts that begin a document share only its start token.
                key = context, chat, () if context else targets
                group = groups.setdefault(key, _Group(context, chat, [], []))
                group.targets.extend(targets)
                group.places.extend(first + place for place in places)
            counts.append(sum(len(targets) for (_, targets, _), _ in asked))
            first += counts[-1]
        rows, tokens, sizes = self._rows([*groups.values()], lengths)
        # One array: small ones between the forward passes would fragment the heap.
        log_probs = np.full(len(tokens), np.nan)
        deep = [row.depth >= self._reach for row in rows]
        for is_deep, as_inputs in ((False, tree_inputs), (True, padded_inputs)):
            part = [row for row, below in zip(rows, deep, strict=True) if below is is_deep]
            read = partial(self._read, part, as_inputs, tokens, log_probs)
            run_batched([row.size for row in part], self.batch_tokens, read, self.padding)
        order = np.argsort([place for group in groups.values() for place in group.places])
        slots = spans((np.cumsum(sizes) - sizes)[order], sizes[order])
        return TokenScores(tokens[slots], log_probs[slots], sizes[order]).split(counts)

    def _rows(
        self, groups: Sequence[_Group], lengths: list[int]
    ) -> tuple[list[Row], Integers, Integers]:
        forests: dict[Hashable, Forest] = {}
        rows: list[Row] = []
        tokens, sizes = [NOTHING], [NOTHING]
        first = 0
        for before, sequences, key in self._encode(groups):
            longest = max((len(ids) for ids, _ in sequences), default=0)
            read = len(before) + longest - 1  # the last token is never an input
            if len(before) and read <= min(self._limit or read, self._reach):
                if key not in forests:
                    is_long = longest > _LONG and self.batch_tokens > 2**12
                    forests[key] = trees(sequences, _MAX_LONG_TREE if is_long else _MAX_TREE)
                forest = forests[key]
                lengths += [read] * len(sequences)
            else:
                forest, before = self._chains(before.tolist(), sequences, lengths), NOTHING
            rows += [Row(before, tree, first) for tree in forest.trees if tree.places.size]
            tokens.append(forest.tokens)
            sizes.append(forest.sizes)
            first += len(forest.tokens)
        return rows, np.concatenate(tokens), np.concatenate(sizes)

    def _encode(
        self, groups: Sequence[_Group]
    ) -> Iterator[tuple[Integers, list[Scored], Hashable]]:
        """Yield the ids of each group's context and targets; the same targets have the same key."""
        contexts: list[list[Pieces]] = []
        pairs: list[tuple[Target, ...]] = []  # of what is read together
        for context, chat, targets, _ in groups:
            chunks = chunked(context, self._apart)
            tail: Pieces = ()
            begins = _beginnings(tuple(targets))
            if chunks and not (self._apart and all(meets_apart(chunks[-1][-1], b) for b in begins)):
                tail = chunks[-1] if chat else chunks.pop()
            contexts.append(chunks)
            pairs.append(tuple(((*tail, *read), scored) for read, scored in targets))
        chunks = [*dict.fromkeys(chain.from_iterable(contexts))]
        readings = dict(zip(chunks, read_chunks(self.tokenizer, chunks), strict=True))
        wanted = [*dict.fromkeys(chain(*pairs, *(group.targets for group in groups if group.chat)))]
        scored = dict(zip(wanted, read_scored(self.tokenizer, wanted, self._apart), strict=True))
        for group, before, own in zip(groups, contexts, pairs, strict=True):
            sequences = [scored[pair] for pair in own]
            if group.chat and before:
                end = readings[before[-1]].ids
                alone = [scored[target] for target in group.targets]
                sequences = [*map(partial(_after_chat, end), sequences, alone)]
            start = () if group.chat else self._start
            ids = np.array([*start, *(i for c in before for i in readings[c].ids)], np.int64)
            yield ids, sequences, (own, group.chat)

    def _chains(self, before: list[int], targets: Sequence[Scored], lengths: list[int]) -> Forest:
        """Return a tree for each different sequence, truncated to what the model reads."""
        wholes = []
        for ids, start in targets:
            # Without a start token, nothing predicts the first token: it is not scored.
            whole, begin = [*before, *ids], max(1, len(before) + start)
            lengths.append(len(whole) - 1)
            if self._limit and lengths[-1] > self._limit:
                dropped = min(lengths[-1] - self._limit, begin - 1)
                whole, begin = whole[dropped : dropped + self._limit + 1], begin - dropped
            wholes.append((whole, begin))
        return trees(wholes, 0)

    def _read(
        self,
        rows: Sequence[Row],
        as_inputs: Callable[[PreTrainedModel, Sequence[Row]], dict[str, Tensor]],
        tokens: Integers,
        log_probs: npt.NDArray[np.float64],
        batch: list[int],
    ) -> list[None]:
        part = [rows[i] for i in batch]
        hidden, _ = states_and_output(self.model, **as_inputs(self.model, part))
        score_rows(self.model, hidden, part, tokens, log_probs, self.block)
        return [None] * len(batch)


class _Group(NamedTuple):
    """Targets that follow one context, and their places among all targets."""

    context: Pieces
    chat: bool
    targets: list[Target]
    places: list[int]


@lru_cache(maxsize=64)
def _beginnings(targets: tuple[Target, ...]) -> frozenset[Piece]:
    """Return the first characters, or control tokens, of targets."""
    firsts = (next((piece for piece in (*r, *s) if piece != ""), None) for r, s in targets)
    return frozenset(p[0] if isinstance(p, str) else p for p in firsts if p is not None)


def _after_chat(end: list[int], joined: Scored, alone: Scored) -> Scored:
    """Return a target after the end of a chat, `joined` as one string with it.

    A token that would reach from the chat into a target is two: the chat is what it is before the
    model answers.
    """
    ids, start = joined
    count = len(end)
    return (ids[count:], max(0, start - count)) if ids[:count] == end else alone


# Fill-in-the-middle tokens: prefix, suffix, middle.
_MIDDLE_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


class Order(NamedTuple):
    """Pieces around the text before a blank and the text after it, one of which comes first."""

    before: Pieces
    between: Pieces
    after: Pieces
    suffix_first: bool

    def pieces(self, left: Pieces, right: Pieces) -> Pieces:
        first, second = (right, left) if self.suffix_first else (left, right)
        return (*self.before, *first, *self.between, *second, *self.after)


# As in the suffix-prefix-middle order of fill-in-the-middle training.
_SUFFIX_FIRST = Order((), ("\n\n",), (), suffix_first=True)


class _Prompt(NamedTuple):
    """Context before a text in prompts about it, their targets and the places of these."""

    before: Pieces
    is_first: bool  # whether the text begins the part of the pattern it is in, or ends it
    is_last: bool
    targets: tuple[Target, ...]
    places: tuple[int, ...]


class BlankOrders:
    """Continuations that fill blanks.

    A blank at the end of its pattern is continued. Elsewhere the pattern is ordered with the
    model's fill-in-the-middle tokens, or else the text after the blank comes first. In a prompt
    about a text, `Blank.closing` is scored with the filling, and if the text follows the prompt, a
    chat template makes it the user's turn, which the prompt answers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._infix = _infix_order(tokenizer) or _SUFFIX_FIRST
        self._prompt = _chat_order(tokenizer) or self._infix
        self._prompts = lru_cache(maxsize=16)(self._about)

    def of(self, task: Patterns) -> list[tuple[Continuation, Sequence[int]]]:
        """Return continuations, each with the places of its targets among the task's."""
        if not task.text:
            ends = [*accumulate(len(blank.targets) for blank in task.blanks)]
            places = [range(n - len(b.targets), n) for b, n in zip(task.blanks, ends, strict=True)]
            return [*zip(map(self._continuation, task.blanks), places, strict=True)]
        asked: list[tuple[Continuation, Sequence[int]]] = []
        for prompt in self._prompts(task.blanks):
            text = task.text.lstrip() if prompt.is_first else task.text
            text = text.rstrip() if prompt.is_last else text
            asked.append((Continuation((*prompt.before, text), prompt.targets), prompt.places))
        return asked

    def _continuation(self, blank: Blank) -> Continuation:
        closing = blank.closing or ""
        order = self._infix if blank.closing is None else self._prompt
        right = blank.right
        if closing:  # which the first piece starts with
            right = (right[0][len(closing) :], *right[1:])
        left, right = _stripped(blank.left), _stripped(right)
        context = order.pieces(left, right) if right else left
        fillings = (_filling(blank, target, bool(left)) + closing for target in blank.targets)
        return Continuation(context, tuple(((), (filling,)) for filling in fillings))

    def _about(self, blanks: tuple[Blank, ...]) -> list[_Prompt]:
        """Return prompts about a text, one for all that have the same before it."""
        groups: dict[tuple[Pieces, bool, bool], tuple[list[Target], list[int]]] = {}
        place = 0
        for blank in blanks:
            closing = blank.closing or ""
            left = "".join(blank.left).strip()
            right = "".join(blank.right)[len(closing) :].strip()
            order = self._infix if blank.closing is None else self._prompt
            context = order.pieces((left,), (right,)) if right else (left,)
            part = left if TEXT_SLOT in left else right
            slot = context.index(part)
            begin, _, end = part.partition(TEXT_SLOT)
            before = tuple(piece for piece in (*context[:slot], begin) if piece != "")
            after = tuple(piece for piece in (end, *context[slot + 1 :]) if piece != "")
            targets, places = groups.setdefault((before, not begin, not end), ([], []))
            for target in blank.targets:
                targets.append((after, (_filling(blank, target, bool(left)) + closing,)))
                places.append(place)
                place += 1
        return [_Prompt(*key, tuple(ts), tuple(places)) for key, (ts, places) in groups.items()]


def _filling(blank: Blank, target: str, follows: bool) -> str:
    """Return a target with the space before it; a joined one is as it is written (`'s fine`)."""
    if blank.joined and follows:
        return target.rstrip()
    return (" " if follows else "") + target.strip()


def _stripped(pieces: tuple[str, ...]) -> tuple[str, ...]:
    inside = [i for i, piece in enumerate(pieces) if piece.strip()]
    if not inside:
        return ()
    kept = [*pieces[inside[0] : inside[-1] + 1]]
    kept[0] = kept[0].lstrip()
    kept[-1] = kept[-1].rstrip()
    return tuple(kept)


def _infix_order(tokenizer: PreTrainedTokenizerBase) -> Order | None:
    control = control_of(tokenizer).ids
    for tokens in _MIDDLE_TOKENS:
        if all(token in control for token in tokens):
            prefix, suffix, middle = (control[token] for token in tokens)
            return Order((prefix,), (suffix, " "), (middle,), suffix_first=False)
    return None


def _chat_order(tokenizer: PreTrainedTokenizerBase) -> Order | None:
    """Return the order of a chat turn, or None if the tokenizer has no usable chat template.

    A later turn is used, since templates add a system message or the date to the first one.
    """
    if not tokenizer.chat_template:
        return None
    slot = "{right}"
    earlier = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    later = [*earlier, {"role": "user", "content": slot}]
    render = partial(tokenizer.apply_chat_template, tokenize=False)
    try:
        begun, whole = str(render(earlier)), str(render(later, add_generation_prompt=True))
    except (TemplateError, ValueError) as error:
        begun, whole = "", f"({error})"
    start = "".join(map(control_of(tokenizer).names.__getitem__, start_token(tokenizer)))
    # The start token is added to every text anyway.
    turn = whole.removeprefix(begun).removeprefix(start)
    before, separator, after = turn.partition(slot)
    if not separator or slot in after or not begun or not whole.startswith(begun):
        log.warning(
            f"the chat template of {tokenizer.name_or_path} does not render a user's text as a "
            f"separate turn: {whole}"
        )
        return None
    written = partial(written_pieces, tokenizer)
    return Order(written(before), written(after), (), suffix_first=True)
