"""Decoder-only language models that score continuations, and fill blanks as continuations.

The targets of a context are merged into a prefix tree that the model reads after it in one row, in
depth-first order: a token attends to the earlier nodes whose descendants it is among.
"""

from __future__ import annotations

import inspect
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.engine.batching import pad_rows, run_batched, windows
from ctrlreward.engine.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.models.control_tokens import control_tokens, mark, rendered_chat
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.tasks import TEXT_SLOT, Blank, Continuation, Patterns, TokenScores
from ctrlreward.models.tokenization import (
    NOTHING,
    Integers,
    Pieces,
    Reading,
    first_word,
    glued,
    read_strings,
    start_token,
    warn_truncated,
)

log = logging.getLogger(__name__)

# Most nodes of the tree after a context. Attention over branches that a token doesn't see is
# wasted, but cheap next to the rest of the model.
_MAX_TREE = 512
# Of targets that are long themselves, which share less, where a pass is large: a row is then about
# as long as a text, and fits into one pass with other rows.
_MAX_FREE_TREE = 192

_Strings: TypeAlias = tuple[tuple[str, str], ...]


class CausalLM(FrozenModel):
    """Frozen decoder-only model that scores continuations, and blanks in `BlankOrders`."""

    auto_class = AutoModelForCausalLM

    def _prepare(self) -> None:
        self._start = np.array(start_token(self.tokenizer), np.int64)
        self._limit: int | None = getattr(self.model.config, "max_position_embeddings", None)
        check_output_layer(self.model)
        self._reach = _tree_depth(self.model)
        self._max_free = _MAX_FREE_TREE if self.batch_tokens > 2**12 else _MAX_TREE
        self._fixed = lru_cache(maxsize=64)(self._build_fixed)

    @cached_property
    def _orders(self) -> BlankOrders:
        return BlankOrders(self.tokenizer)

    def answer(self, tasks: Sequence[Continuation | Patterns]) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of each task's targets, in the given order.

        A continuation that exceeds the model's context loses the tokens farthest from the target
        first, then the last ones of the target, with a warning.
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
        # Targets by their contexts, each with its place. Texts that begin a document share only its
        # start token.
        groups: dict[tuple[Pieces, bool, _Strings], dict[tuple[str, str], int]] = {}
        free, wanted = set(), []
        for task in tasks:
            own, sorting = self._orders.of(task) if isinstance(task, Patterns) else ([task], None)
            found = []
            for each in (continuation for continuation in own if continuation.targets):
                key = each.context, each.chat, () if each.context else each.targets
                places = groups.setdefault(key, {})
                found.append((key, [places.setdefault(t, len(places)) for t in each.targets]))
                if not each.fixed:
                    free.add(key)
            wanted.append((found, sorting))
        merged = [
            Continuation(key[0], tuple(places), fixed=key not in free, chat=key[1])
            for key, places in groups.items()
        ]
        encoded = self._encode(merged, lengths)
        scored, first = {}, 0
        for (key, places), (_, order) in zip(groups.items(), encoded, strict=True):
            count = len(places)
            scored[key] = first + (np.arange(count) if order is None else np.argsort(order))
            first += count
        targets = []
        for found, sorting in wanted:
            row = np.concatenate([NOTHING, *(scored[key][places] for key, places in found)])
            targets.append(row if sorting is None else row[list(sorting)])
        scores = self._read([row for rows, _ in encoded for row in rows])
        return scores.reordered(np.concatenate(targets)).split([len(each) for each in targets])

    def _read(self, rows: Sequence[Row]) -> TokenScores:
        """Return the scores of the targets of all rows, one row after the other."""
        tokens = np.concatenate([NOTHING, *(row.tokens for row in rows)])
        ends = np.cumsum([0, *(len(row.tokens) for row in rows)])
        # One array: small ones between the forward passes would fragment the heap.
        log_probs = np.full(len(tokens), np.nan)

        def read(batch: list[int], as_inputs: Callable[..., dict[str, Tensor]]) -> None:
            chosen = [rows[i] for i in batch]
            hidden, _ = states_and_output(self.model, **as_inputs(self.model, chosen))
            width = hidden.shape[1]
            states = [row.predicting + place * width for place, row in enumerate(chosen)]
            places = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in batch])
            values = token_log_probs(
                self.model,
                hidden.flatten(0, 1),
                torch.from_numpy(np.concatenate(states)),
                torch.from_numpy(tokens[places]),
                block=self.block,
            )
            log_probs[places] = values.cpu().numpy()

        def score(batch: list[int]) -> list[None]:
            far = np.array([rows[i].depths.max(initial=0) >= self._reach for i in batch])
            for part, as_inputs in ((~far, tree_inputs), (far, padded_inputs)):
                if part.any():
                    read(np.array(batch)[part].tolist(), as_inputs)
            return [None] * len(batch)

        lengths = [len(row.ids) for row in rows]
        description = f"{self.name}: {len(rows)} rows"
        run_batched(lengths, self.batch_tokens, score, description, self.padding)
        return TokenScores(tokens, log_probs, np.concatenate([NOTHING, *(r.sizes for r in rows)]))

    def _encode(self, asked: Sequence[Continuation], lengths: list[int]) -> list[_Encoded]:
        """Return the rows of each continuation, piece by piece where that gives the same tokens."""
        fixed = {each.targets: self._fixed(each.targets) for each in asked if each.fixed}
        free = {t: None for each in asked if not each.fixed for t in each.targets if t[0]}
        starts = dict(zip(free, self._targets([*free]).starts, strict=True))
        begins = [
            fixed[each.targets].begins if each.fixed else ["".join(t) for t in each.targets]
            for each in asked
        ]
        strings: list[str] = []
        meetings = []
        for each, own in zip(asked, begins, strict=True):
            strings += (*each.context, *own)
            ends = [(each.context[-1], begin) for begin in own if each.context]
            meetings.append([*pairwise(each.context), *ends])
        pairs = (pair for meeting in meetings for pair in meeting)
        reading = Reading(self.tokenizer, strings, pairs)
        encoded = []
        for each, own, meeting in zip(asked, begins, meetings, strict=True):
            start = NOTHING if each.chat else self._start
            before = np.concatenate([start, *(reading.ids[piece] for piece in each.context)])
            if not reading.meeting.issuperset(meeting):
                context = "".join(each.context)
                before, targets = start, self._targets(each.targets, context)
                if each.chat:
                    before, targets = self._after_chat(context, each.targets, targets)
            elif each.fixed:
                targets = fixed[each.targets]
            else:
                ids = [reading.ids[begin].tolist() for begin in own]
                targets = _Targets(ids, [starts.get(target, 0) for target in each.targets])
            encoded.append(self._rows(before, targets, lengths))
        return encoded

    def _targets(self, targets: Sequence[tuple[str, str]], context: str = "") -> _Targets:
        """Return the tokens of targets, each read together with the string before it."""
        read = read_strings(
            self.tokenizer, [context + a + b for a, b in targets], return_offsets_mapping=True
        )
        given = [len(context) + len(begin) for begin, _ in targets]
        starts = [
            bisect_right(spans, most, key=lambda span: span[1])
            for spans, most in zip(read["offset_mapping"], given, strict=True)
        ]
        return _Targets(read["input_ids"], starts)

    def _after_chat(
        self, chat: str, targets: _Strings, joined: _Targets
    ) -> tuple[Integers, _Targets]:
        """Return the tokens of a chat, and of the targets after it, `joined` as one string with it.

        A token that would reach from the chat into a target is two: the chat is what it is before
        the model answers.
        """
        (ids,) = read_strings(self.tokenizer, [chat])["input_ids"]
        count, alone = len(ids), self._targets(targets)
        kept = [row[:count] == ids for row in joined.ids]
        rows = [
            both[count:] if same else own
            for both, own, same in zip(joined.ids, alone.ids, kept, strict=True)
        ]
        starts = [
            max(0, both - count) if same else own
            for both, own, same in zip(joined.starts, alone.starts, kept, strict=True)
        ]
        return np.array(ids, np.int64), _Targets(rows, starts)

    def _build_fixed(self, targets: _Strings) -> _Targets:
        """Return targets that follow many contexts, with their trees."""
        ids, starts, *_ = self._targets(targets)
        strings = ["".join(target) for target in targets]
        words = [first_word(string) for string in strings]
        alone = Reading(self.tokenizer, words).ids
        begin = all(
            row[: len(alone[w])] == alone[w].tolist() for w, row in zip(words, ids, strict=True)
        )
        forest = trees(ids, starts, _MAX_TREE)
        return _Targets(ids, starts, tuple(dict.fromkeys(words if begin else strings)), forest)

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
        fits = longest <= min(self._limit or longest, self._reach)
        if len(sequences) > 1 and len(before) and fits:
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


class Row(NamedTuple):
    """Tokens that a model reads in one row, and the ones that it scores, target by target."""

    ids: Integers  # (nodes,)
    depths: Integers  # (nodes,), in the node's sequence
    ends: Integers  # (nodes,), index after the node's last descendant
    predicting: Integers  # (scored,), node that predicts the token
    tokens: Integers  # (scored,)
    sizes: Integers  # (targets,), number of scored tokens

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


class _Targets(NamedTuple):
    """Token ids of targets, the place from which each is scored, and for fixed ones their trees."""

    ids: list[list[int]]
    starts: list[int]
    begins: tuple[str, ...] = ()
    forest: tuple[list[Row], list[int]] | None = None


# Rows, and the order of the targets in them, None if it is the given one.
_Encoded: TypeAlias = tuple[list[Row], list[int] | None]


def trees(
    sequences: Sequence[list[int]], starts: Sequence[int], most: int
) -> tuple[list[Row], list[int]]:
    """Return trees of at most `most` nodes, or of one sequence, and their targets' order.

    The first token of a sequence is predicted by node -1, its last one is not read.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    tables: list[Any] = []  # rows of lists
    path: list[int] = []  # nodes of the previous sequence
    previous: list[int] = []
    for i in order:
        sequence, start = sequences[i], starts[i]
        read = sequence[:-1]
        shared = shared_length([previous, read])
        size = len(tables[-1].ids) if tables else 0
        if not tables or (size and size + len(read) - shared > most):
            tables.append(Row._make([] for _ in Row._fields))
            path, shared, size = [], 0, 0
        ids, depths, ends, predicting, tokens, sizes = tables[-1]
        for node in path[shared:]:
            ends[node] = size
        path = [*path[:shared], *range(size, size + len(read) - shared)]
        ids += read[shared:]
        depths += range(shared, len(read))
        ends += [0] * (len(read) - shared)
        predicting += [-1, *path][start : len(sequence)]
        tokens += sequence[start:]
        sizes.append(len(sequence) - start)
        previous = read
    rows = [Row._make(np.array(values, np.int64) for values in table) for table in tables]
    for row in rows:
        row.ends[row.ends == 0] = len(row.ids)
    return rows, order


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


def _tree_depth(model: PreTrainedModel) -> float:
    """Return the depth to which the branches of a prefix tree do not affect each other.

    It is 0 in a recurrence or convolution (Mamba, LFM2), and with ALiBi. The mask of a tree
    replaces the window of an attention layer, so that deeper trees would be read in another way.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return 0
    (branches,), _ = trees([[1, 1, 1, 1], [2, 2, 2, 2]], [0, 0], 6)
    row, alone = branches.after(np.array([0])), chain(np.array([0, 2, 2, 2, 2]), 1)
    with torch.inference_mode():
        expected, _ = states_and_output(model, **padded_inputs(model, [alone]))
        try:
            found, _ = states_and_output(model, **tree_inputs(model, [row]))
        except ValueError:  # Falcon's ALiBi expects a two-dimensional mask
            return 0
    difference = found[0, row.predicting[4:]] - expected[0].float()
    # Rounding errors are far smaller than half of the digits.
    same = difference.norm() < torch.finfo(model.dtype).eps ** 0.5 * expected.float().norm()
    config = model.config.get_text_config()
    sizes = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min(filter(None, sizes), default=math.inf) if same else 0


# Fill-in-the-middle tokens: prefix, suffix, middle.
_MIDDLE_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


class Order(NamedTuple):
    """Strings around the text before a blank and the text after it, one of which comes first."""

    before: str
    between: str
    after: str
    suffix_first: bool

    def pieces(self, left: Pieces, right: Pieces) -> Pieces:
        """Return the context of a filling."""
        first, second = (right, left) if self.suffix_first else (left, right)
        return (self.before, *first, self.between, *second, self.after)


# As in the suffix-prefix-middle order of fill-in-the-middle training.
_SUFFIX_FIRST = Order("", "\n\n", "", suffix_first=True)


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

    def of(self, task: Patterns) -> tuple[list[Continuation], tuple[int, ...] | None]:
        """Return continuations, and the place of each target among theirs, None if in order."""
        if not task.text:
            return [self._continuation(blank) for blank in task.blanks], None
        found = []
        prompts, places = self._prompts(task.blanks)
        for before, strips, targets in prompts:
            text = task.text.lstrip() if strips[0] else task.text
            text = text.rstrip() if strips[1] else text
            found.append(Continuation((before, text) if before else (text,), targets, fixed=True))
        return found, places

    def _continuation(self, blank: Blank) -> Continuation:
        """Return the continuation of a blank without a text slot."""
        closing = blank.closing or ""
        order = self._infix if blank.closing is None else self._prompt
        right = blank.right
        if closing:  # which the first piece starts with
            right = (right[0][len(closing) :], *right[1:])
        left, right = _stripped(blank.left), _stripped(right)
        context, given = glued(order.pieces(left, right) if right else left)
        fillings = (_filling(blank, target, bool(left)) + closing for target in blank.targets)
        return Continuation(tuple(context), tuple((given, filling) for filling in fillings))

    def _about(
        self, blanks: tuple[Blank, ...]
    ) -> tuple[
        list[tuple[str, tuple[bool, bool], tuple[tuple[str, str], ...]]], tuple[int, ...] | None
    ]:
        """Return the prompts about a text by what stands before it, and their targets' places."""
        groups: dict[tuple[str, tuple[bool, bool]], list[tuple[int, tuple[str, str]]]] = {}
        count = 0
        for blank in blanks:
            closing = blank.closing or ""
            left = "".join(blank.left).strip()
            right = "".join(blank.right)[len(closing) :].strip()
            order = self._infix if blank.closing is None else self._prompt
            context = "".join(order.pieces((left,), (right,))) if right else left
            before, _, after = context.partition(TEXT_SLOT)
            part = left if TEXT_SLOT in left else right
            strips = part.startswith(TEXT_SLOT), part.endswith(TEXT_SLOT)
            group = groups.setdefault((before, strips), [])
            for target in blank.targets:
                group.append((count, (after, _filling(blank, target, bool(left)) + closing)))
                count += 1
        prompts = [(*key, tuple(target for _, target in each)) for key, each in groups.items()]
        found = [place for each in groups.values() for place, _ in each]
        places = tuple(sorted(range(count), key=found.__getitem__))
        return prompts, None if places == tuple(range(count)) else places


def _filling(blank: Blank, target: str, follows: bool) -> str:
    """Return a target with the space before it; a joined one is as it is written (`'s fine`)."""
    if blank.joined and follows:
        return target.rstrip()
    return (" " if follows else "") + target.strip()


def _stripped(pieces: Pieces) -> Pieces:
    """Return pieces without white space around the whole."""
    kept = list(pieces)
    while kept and not kept[0].strip():
        del kept[0]
    while kept and not kept[-1].strip():
        del kept[-1]
    if kept:
        kept[0] = kept[0].lstrip()
        kept[-1] = kept[-1].rstrip()
    return tuple(kept)


def _infix_order(tokenizer: PreTrainedTokenizerBase) -> Order | None:
    """Return the fill-in-the-middle order, or None if the vocabulary lacks its tokens."""
    control = control_tokens(tokenizer)
    for tokens in _MIDDLE_TOKENS:
        if all(token in control for token in tokens):
            prefix, suffix, middle = (mark(control[token]) for token in tokens)
            return Order(prefix, f"{suffix} ", middle, suffix_first=False)
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
    try:
        begun = rendered_chat(tokenizer, earlier, {}, add_generation_prompt=False)
        whole = rendered_chat(tokenizer, later, {}, add_generation_prompt=True)
    except (TemplateError, ValueError) as error:
        begun, whole = "", f"({error})"
    start = "".join(map(mark, start_token(tokenizer)))
    # The start token is added to every text anyway.
    turn = whole.removeprefix(begun).removeprefix(start)
    before, separator, after = turn.partition(slot)
    if not separator or slot in after or not begun or not whole.startswith(begun):
        log.warning(
            f"the chat template of {tokenizer.name_or_path} does not render a user's text as a "
            f"separate turn: {whole}"
        )
        return None
    return Order(before, after, "", suffix_first=True)
