"""Decoder-only language models that score continuations, and fill blanks as continuations.

The targets of a context are merged into a prefix tree that the model reads after it in one row, in
depth-first order: a token attends to the earlier nodes whose descendants it is among.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.models.batching import in_windows, pad_rows, run_batched
from ctrlreward.models.control_tokens import Piece, Pieces, control_of, written_pieces
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.models.tasks import (
    TEXT_SLOT,
    Blank,
    Continuation,
    Patterns,
    Target,
    TokenScores,
    as_pieces,
)
from ctrlreward.models.tokenization import (
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
        self._reach = _tree_depth(self.model)
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
        counts = []
        groups: dict[Hashable, _Group] = {}
        first = 0
        for task in tasks:
            asked = self._orders.of(task) if isinstance(task, Patterns) else [_in_order(task)]
            for (context, targets, chat), places in asked:
                # Texts that begin a document share only its start token.
                key = context, chat, () if context else targets
                group = groups.setdefault(key, _Group(context, chat, [], []))
                group.targets.extend(targets)
                group.places.extend(first + place for place in places)
            counts.append(sum(len(targets) for (_, targets, _), _ in asked))
            first += counts[-1]
        forests = self._encode([*groups.values()], lengths)
        sizes = np.zeros(first, np.int64)
        for group, forest in zip(groups.values(), forests, strict=True):
            sizes[group.places] = forest.sizes
        starts = np.cumsum(sizes) - sizes
        tokens = np.empty(sizes.sum(), np.int64)
        rows: list[Row] = []
        for group, forest in zip(groups.values(), forests, strict=True):
            slots = spans(starts[group.places], forest.sizes)
            tokens[slots] = forest.tokens
            scoring = [row for row in forest.rows if row.places.size]
            rows += [row._replace(places=slots[row.places]) for row in scoring]
        return TokenScores(tokens, self._log_probs(rows, tokens), sizes).split(counts)

    def _log_probs(self, rows: Sequence[Row], tokens: Integers) -> npt.NDArray[np.float64]:
        """Return the log-probability of each of the tokens, which rows predict at their places."""
        # One array: small ones between the forward passes would fragment the heap.
        log_probs = np.full(len(tokens), np.nan)
        run_batched(
            [len(row.ids) for row in rows],
            self.batch_tokens,
            partial(self._read, rows, tokens, log_probs),
            self.padding,
        )
        return log_probs

    def _read(
        self,
        rows: Sequence[Row],
        tokens: Integers,
        log_probs: npt.NDArray[np.float64],
        batch: list[int],
    ) -> list[None]:
        """Read some rows in one pass, or in two if only some of them can be trees."""
        for is_deep, as_inputs in ((False, tree_inputs), (True, padded_inputs)):
            part = [rows[i] for i in batch if (rows[i].depth >= self._reach) is is_deep]
            if not part:
                continue
            hidden, _ = states_and_output(self.model, **as_inputs(self.model, part))
            width = hidden.shape[1]
            states = np.concatenate([row.predicting + k * width for k, row in enumerate(part)])
            places = np.concatenate([row.places for row in part])
            values = token_log_probs(
                self.model,
                hidden.flatten(0, 1),
                torch.from_numpy(states),
                torch.from_numpy(tokens[places]),
                block=self.block,
            )
            log_probs[places] = values.cpu().numpy()
        return [None] * len(batch)

    def _encode(self, groups: Sequence[_Group], lengths: list[int]) -> list[Forest]:
        """Return the rows of each group's targets after its context."""
        contexts: list[list[Pieces]] = []
        numbers: dict[_Targets, int] = {}  # of different targets
        of_group: list[int] = []
        for group in groups:
            context, targets = chunked(group.context, self._apart), tuple(group.targets)
            tail: Pieces = ()
            if context and not (self._apart and _follow_apart(context[-1][-1], targets)):
                tail = context[-1] if group.chat else context.pop()
            contexts.append(context)
            of_group.append(numbers.setdefault(_Targets(targets, tail, group.chat), len(numbers)))
        sequences = self._sequences([*numbers])
        chunks = [*dict.fromkeys(chain.from_iterable(contexts))]
        ids = dict(zip(chunks, read_chunks(self.tokenizer, chunks), strict=True))
        forests: dict[int, Forest] = {}
        encoded = []
        for group, context, number in zip(groups, contexts, of_group, strict=True):
            own = sequences[number]
            start = () if group.chat else self._start
            before = np.array([*start, *chain(*map(ids.__getitem__, context))], np.int64)
            longest = max((len(row) for row, _ in own), default=0)
            read = len(before) + longest - 1  # the last token is never an input
            if len(before) and read <= min(self._limit or read, self._reach):
                if number not in forests:
                    is_long = longest > _LONG and self.batch_tokens > 2**12
                    forests[number] = trees(own, _MAX_LONG_TREE if is_long else _MAX_TREE)
                rows = [row.after(before) for row in forests[number].rows]
                encoded.append(forests[number]._replace(rows=rows))
                lengths += [read] * len(own)
            else:
                encoded.append(self._chains(before.tolist(), own, lengths))
        return encoded

    def _sequences(self, asked: Sequence[_Targets]) -> list[list[Scored]]:
        """Return the ids of targets, and from which place each is scored."""
        pairs = [
            ((*tail, *as_pieces(read)), as_pieces(scored))
            for targets, tail, _ in asked
            for read, scored in targets
        ]
        rows = iter(read_scored(self.tokenizer, pairs, self._apart))
        sequences = [[next(rows) for _ in each.targets] for each in asked]
        for place, each in enumerate(asked):
            if each.chat and each.tail:
                sequences[place] = self._after_chat(each, sequences[place])
        return sequences

    def _after_chat(self, asked: _Targets, joined: Sequence[Scored]) -> list[Scored]:
        """Return targets after the end of a chat, `joined` as one string with it.

        A token that would reach from the chat into a target is two: the chat is what it is before
        the model answers.
        """
        (end,) = read_chunks(self.tokenizer, [asked.tail])
        (apart,) = self._sequences([asked._replace(tail=())])
        count = len(end)
        return [
            (ids[count:], max(0, start - count)) if ids[:count] == end else alone
            for (ids, start), alone in zip(joined, apart, strict=True)
        ]

    def _chains(self, before: list[int], targets: Sequence[Scored], lengths: list[int]) -> Forest:
        """Return a row for each different sequence, truncated to what the model reads."""
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


class _Group(NamedTuple):
    """Targets that follow one context, and their places among all targets."""

    context: Pieces
    chat: bool
    targets: list[Target]
    places: list[int]


class _Targets(NamedTuple):
    """Targets, and the end of their context that they are read together with."""

    targets: tuple[Target, ...]
    tail: Pieces
    chat: bool


@lru_cache(maxsize=64)
def _beginnings(targets: tuple[Target, ...]) -> frozenset[Piece]:
    """Return the first characters, or control tokens, of targets."""
    pieces = ((*as_pieces(read), *as_pieces(scored)) for read, scored in targets)
    firsts = (next((piece for piece in each if piece != ""), None) for each in pieces)
    return frozenset(p[0] if isinstance(p, str) else p for p in firsts if p is not None)


def _follow_apart(last: Piece, targets: tuple[Target, ...]) -> bool:
    return all(meets_apart(last, begin) for begin in _beginnings(targets))


def _in_order(task: Continuation) -> tuple[Continuation, Sequence[int]]:
    return task, range(len(task.targets))


class Row(NamedTuple):
    """Tokens that a model reads in one row, and those that it scores.

    The scored ones are in `places` among the scored tokens of all targets, one after the other.
    """

    ids: Integers  # (nodes,)
    depths: Integers  # (nodes,), in the node's sequence
    ends: Integers  # (nodes,), index after the node's last descendant
    predicting: Integers  # (scored,), node that predicts the token
    places: Integers  # (scored,)

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return int(self.depths.max(initial=0))

    def after(self, chain: Integers) -> Row:
        """Return the tree after the tokens of a chain; a predicting node of -1 is its last."""
        length = len(chain)
        ends = np.full(length, length + len(self.ids))
        return Row(
            np.concatenate([chain, self.ids]),
            np.concatenate([np.arange(length), self.depths + length]),
            np.concatenate([ends, self.ends + length]),
            self.predicting + length,
            self.places,
        )


class Forest(NamedTuple):
    """Rows that score some targets, and the scored tokens, target by target."""

    rows: list[Row]
    tokens: Integers  # (scored,)
    sizes: Integers  # (targets,), number of scored tokens


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def trees(targets: Sequence[Scored], most: int) -> Forest:
    """Return trees of at most `most` nodes, or of one sequence each.

    A target is a sequence and the place from which it is scored. The first token of a sequence is
    predicted by node -1, its last one is not read.
    """
    if len(targets) == 1:
        return _chain(*targets[0])
    sizes = [max(0, len(sequence) - start) for sequence, start in targets]
    first = [*accumulate(sizes, initial=0)]
    tables: list[Any] = []  # rows of lists
    path: list[int] = []  # nodes of the previous sequence
    previous: list[int] = []
    for i in sorted(range(len(targets)), key=lambda i: targets[i][0]):
        sequence, start = targets[i]
        read = sequence[:-1]
        shared = shared_length(previous, read)
        size = len(tables[-1].ids) if tables else 0
        new = len(read) - shared
        if not tables or (size and new and size + new > most):
            tables.append(Row._make([] for _ in Row._fields))
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
    rows = [Row(*(np.array(values, np.int64) for values in table)) for table in tables]
    for row in rows:
        row.ends[row.ends == 0] = len(row.ids)
    tokens = [token for sequence, start in targets for token in sequence[start:]]
    return Forest(rows, np.array(tokens, np.int64), np.array(sizes, np.int64))


def _chain(sequence: list[int], start: int) -> Forest:
    """Return the row of one sequence."""
    ids = np.array(sequence, np.int64)
    nodes, tokens = np.arange(len(sequence) - 1), ids[start:]
    ends = np.full(len(nodes), len(nodes))
    predicting = np.arange(start - 1, start - 1 + len(tokens))
    row = Row(ids[:-1], nodes, ends, predicting, np.arange(len(tokens)))
    return Forest([row], tokens, np.array([len(tokens)]))


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
    ((branches,), *_) = trees([([1, 1, 1, 1], 0), ([2, 2, 2, 2], 0)], 6)
    ((alone,), *_) = trees([([0, 2, 2, 2, 2], 1)], 0)
    row = branches.after(np.array([0]))
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
    """Pieces around the text before a blank and the text after it, one of which comes first."""

    before: Pieces
    between: Pieces
    after: Pieces
    suffix_first: bool

    def pieces(self, left: Pieces, right: Pieces) -> Pieces:
        """Return the context of a filling."""
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
        asked: list[tuple[Continuation, Sequence[int]]] = []
        if not task.text:
            first = 0
            for blank in task.blanks:
                asked.append((self._continuation(blank), range(first, first + len(blank.targets))))
                first += len(blank.targets)
            return asked
        for prompt in self._prompts(task.blanks):
            text = task.text.lstrip() if prompt.is_first else task.text
            text = text.rstrip() if prompt.is_last else text
            continuation = Continuation((*prompt.before, text), prompt.targets)
            asked.append((continuation, prompt.places))
        return asked

    def _continuation(self, blank: Blank) -> Continuation:
        """Return the continuation of a blank without a text slot."""
        closing = blank.closing or ""
        order = self._infix if blank.closing is None else self._prompt
        right = blank.right
        if closing:  # which the first piece starts with
            right = (right[0][len(closing) :], *right[1:])
        left, right = _stripped(blank.left), _stripped(right)
        context = order.pieces(left, right) if right else left
        fillings = (_filling(blank, target, bool(left)) + closing for target in blank.targets)
        return Continuation(context, tuple(("", filling) for filling in fillings))

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
                targets.append((after, _filling(blank, target, bool(left)) + closing))
                places.append(place)
                place += 1
        return [_Prompt(*key, tuple(ts), tuple(places)) for key, (ts, places) in groups.items()]


def _filling(blank: Blank, target: str, follows: bool) -> str:
    """Return a target with the space before it; a joined one is as it is written (`'s fine`)."""
    if blank.joined and follows:
        return target.rstrip()
    return (" " if follows else "") + target.strip()


def _stripped(pieces: tuple[str, ...]) -> tuple[str, ...]:
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
        begun = str(render(earlier))
        whole = str(render(later, add_generation_prompt=True))
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
