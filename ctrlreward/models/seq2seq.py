"""Infilling with encoder-decoders: PEGASUS, T5, BART and related families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from ctrlreward.engine.batching import Ids, pad_rows, run_batched, windows
from ctrlreward.engine.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.engine.sharing import shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import control_tokens, mark
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.tasks import TEXT_SLOT, Blank, Infiller, Patterns, TokenScores
from ctrlreward.models.tokenization import (
    NOTHING,
    Integers,
    Pieces,
    Reading,
    encode_texts,
    glued,
    read_strings,
    warn_truncated,
)
from ctrlreward.weights.loading import load_config


def load_infiller(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> Infiller:
    """Load an infiller, shared by all calls with equal arguments: masked, or prompted."""
    if load_config(model).is_encoder_decoder:
        return shared_model(Seq2SeqInfiller, model, device, dtype, batch_tokens)
    return shared_model(CausalLM, model, device, dtype, batch_tokens)


def conditional_log_probs(
    model: Seq2SeqInfiller, sources: Mapping[str, str], targets: Mapping[str, str]
) -> list[TokenScores]:
    """Return the scores of each target's tokens, special ones included, given its source.

    Both are texts by their names in warnings (`"sources[3]"`).
    """
    start = model.model.config.decoder_start_token_id
    fillings = _encode(model, targets, model.decoder_limit or model.max_tokens)
    rows = [np.array(ids, np.int64) for ids in _encode(model, sources, model.max_tokens)]
    scores = model.fill(rows, [(Filling((start,), ids),) for ids in fillings])
    return scores.split([1] * len(rows))


def _encode(model: Seq2SeqInfiller, texts: Mapping[str, str], limit: int) -> list[Ids]:
    return encode_texts(model.tokenizer, [*texts.values()], limit, [*texts].__getitem__)


# Approximate decoder states per call of the output layer, since each call reads all weights; as
# many as the tokens of a pass where these are more.
_STATES_PER_CALL = 2**13

_MASKS = {
    "pegasus": "<mask_1>",
    **dict.fromkeys(("t5", "mt5", "umt5"), "<extra_id_0>"),
    "bart": "<mask>",
}
_NO_MASK = -1  # of a tokenizer that cannot mark blanks


class Filling(NamedTuple):
    """Input tokens of the decoder, and the tokens that are scored after them."""

    given: Ids
    scored: Ids

    @property
    def read(self) -> Ids:
        """Input of the decoder: everything but the last token, which is only predicted."""
        return (self.given + self.scored)[:-1]

    def truncate(self, limit: int | None) -> Filling:
        """Truncate to `limit` decoder positions: the first two, and the nearest to the blank."""
        if not limit:
            return self
        dropped = max(0, min(len(self.read) - limit, len(self.given) - 2))
        given = self.given[:2] + self.given[2 + dropped :]
        return Filling(given, self.scored[: limit + 1 - len(given)])


class Seq2SeqInfiller(FrozenModel):
    """Infiller over an encoder-decoder that was pretrained to fill masks."""

    auto_class = AutoModelForSeq2SeqLM

    def _prepare(self) -> None:
        check_output_layer(self.model)
        self._family = self.model.config.model_type
        if self._family not in _MASKS:
            raise ValueError(
                f"{self._family} models are not supported for infilling. Use an encoder-decoder "
                f"of {', '.join(_MASKS)}, or a decoder-only model."
            )
        self._mask = control_tokens(self.tokenizer).get(_MASKS[self._family], _NO_MASK)
        self._ids = lru_cache(maxsize=256)(self._read_target)  # words that all texts share
        self._layout = lru_cache(maxsize=256)(_layout)
        self._about = lru_cache(maxsize=16)(self._cut_at_slot)
        # Positions of the decoder; T5 does not have a limit.
        self.decoder_limit: int | None = getattr(self.model.config, "max_position_embeddings", None)

    def answer(self, tasks: Sequence[Patterns]) -> list[TokenScores]:
        """Return the scores of the targets of each task, blank by blank."""
        answers: list[TokenScores] = []
        lengths: list[int] = []
        read: list[int] = []
        for window in windows([task.size for task in tasks], self.batch_tokens):
            answers += self._answer(tasks[window.start : window.stop], lengths, read)
        warn_truncated("patterns", lengths, self.max_tokens, "tokens farthest from the blank")
        warn_truncated("fillings", read, self.decoder_limit, "their last tokens", "decoder")
        return answers

    def _answer(
        self, tasks: Sequence[Patterns], lengths: list[int], read: list[int]
    ) -> list[TokenScores]:
        """Answer tasks; add the lengths of patterns and of what the decoder reads to two lists."""
        if self._mask == _NO_MASK and any(task.blanks for task in tasks):
            raise ValueError(
                f"the tokenizer of model = {self.name!r} has no mask token for blanks. Use the "
                "tokenizer that the model was pretrained with."
            )
        asked = [each for task in tasks for each in self._asked(task)]
        sources = self._encode([pieces for pieces, _ in asked])
        fillings = [group for _, group in asked]
        lengths += [len(ids) for ids in sources]
        read += [len(filling.read) for group in fillings for filling in group]
        if self.decoder_limit and max(read, default=0) > self.decoder_limit:
            fillings = [
                tuple(each.truncate(self.decoder_limit) for each in group) for group in fillings
            ]
        scores = self.fill([self._around_mask(ids) for ids in sources], fillings)
        return scores.split([sum(len(blank.targets) for blank in task.blanks) for task in tasks])

    def _asked(self, task: Patterns) -> list[tuple[Pieces, tuple[Filling, ...]]]:
        """Return the masked pattern and the fillings of each blank."""
        if task.text and self._family != "bart":
            return [
                ((*before, slot.replace(TEXT_SLOT, task.text), *after), group)
                for before, slot, after, group in self._about(task.blanks)
            ]
        # The text may be part of what the decoder is given.
        blanks = [blank.about(task.text) if task.text else blank for blank in task.blanks]
        return [(_masked(blank, mark(self._mask)), self._fillings(blank)) for blank in blanks]

    def _cut_at_slot(
        self, blanks: tuple[Blank, ...]
    ) -> list[tuple[Pieces, str, Pieces, tuple[Filling, ...]]]:
        """Return masked patterns about a text, cut around the piece that has its slot."""
        found = []
        for blank in blanks:
            pieces = _masked(blank, mark(self._mask))
            slot = next(i for i, piece in enumerate(pieces) if TEXT_SLOT in piece)
            parts = pieces[:slot], pieces[slot], pieces[slot + 1 :]
            found.append((*parts, self._fillings(blank)))
        return found

    def _fillings(self, blank: Blank) -> tuple[Filling, ...]:
        """Return the decoder sequence of each target, as the family was pretrained."""
        start = self.model.config.decoder_start_token_id
        if self._family == "pegasus":  # the missing text, then the end token
            end = (self.tokenizer.eos_token_id,) if blank.ends else ()
            return tuple(Filling((start,), self._ids(target) + end) for target in blank.targets)
        given: Ids = (start, self._mask)
        left = ""
        if self._family == "bart":  # the whole text, which is given up to the blank
            left = "".join(blank.left).strip()
            given = (start, self.tokenizer.bos_token_id, *self._ids(left))
            if left and blank.joined:  # with the space, if any, between both
                return tuple(Filling(given, self._ids(t.rstrip())) for t in blank.targets)
        space = " " if left else ""
        return tuple(Filling(given, self._ids(space + t.strip())) for t in blank.targets)

    def _read_target(self, text: str) -> Ids:
        return tuple(read_strings(self.tokenizer, [text])["input_ids"][0])

    def _encode(self, rows: Sequence[Pieces]) -> list[Integers]:
        """Return the ids of strings in pieces, with special tokens."""
        strings = dict.fromkeys(piece for row in rows for piece in row)
        reading = Reading(self.tokenizer, strings, (pair for row in rows for pair in pairwise(row)))
        apart = ["".join(row) for row in rows if not reading.meeting.issuperset(pairwise(row))]
        whole = Reading(self.tokenizer, apart).ids
        before, after = self._special
        found = []
        for row in rows:
            string = "".join(row)
            parts = [whole[string]] if string in whole else [reading.ids[piece] for piece in row]
            found.append(np.concatenate([before, *parts, after]))
        return found

    @cached_property
    def _special(self) -> tuple[Integers, Integers]:
        """Special tokens before and after a text."""
        (alone,) = read_strings(self.tokenizer, ["a"])["input_ids"]
        whole = self.tokenizer("a").input_ids
        start = next(i for i in range(len(whole)) if whole[i : i + len(alone)] == alone)
        parts = whole[:start], whole[start + len(alone) :]
        return np.array(parts[0], np.int64), np.array(parts[1], np.int64)

    def _around_mask(self, ids: Integers) -> Integers:
        """Truncate a masked text around its mask to the model's context."""
        if len(ids) <= self.max_tokens:
            return ids
        place = int(np.flatnonzero(ids == self._mask)[0])
        start = min(max(0, place - self.max_tokens // 2), len(ids) - self.max_tokens)
        return np.concatenate([ids[start : start + self.max_tokens - 1], ids[-1:]])

    def fill(
        self, sources: Sequence[Integers], fillings: Sequence[tuple[Filling, ...]]
    ) -> TokenScores:
        """Score the fillings of all masked texts, in order; equal texts are encoded once."""
        keys = [source.tobytes() for source in sources]
        wanted: dict[bytes, tuple[Filling, ...]] = {}
        for key, group in zip(keys, fillings, strict=True):
            known = wanted.setdefault(key, group)
            if known is not group and known != group:
                wanted[key] = tuple(dict.fromkeys((*known, *group)))
        distinct = dict(zip(keys, sources, strict=True))
        groups = [(distinct[key], self._layout(group)) for key, group in wanted.items()]
        ends = np.cumsum([len(layout.tokens) for _, layout in groups])
        most = max(_STATES_PER_CALL, self.batch_tokens)
        log_probs = [np.zeros(0)]
        for _, run in groupby(range(len(groups)), lambda i: ends[i] // most):
            log_probs.append(self._score([groups[i] for i in run]))
        scores = TokenScores(
            np.concatenate([NOTHING, *(layout.tokens for _, layout in groups)]),
            np.concatenate(log_probs),
            np.concatenate([NOTHING, *(layout.sizes for _, layout in groups)]),
        )
        first = dict(zip(wanted, np.cumsum([0, *map(len, wanted.values())]), strict=False))
        order = [NOTHING]
        for key, group in zip(keys, fillings, strict=True):
            known = wanted[key]
            places = range(len(known)) if known == group else map(known.index, group)
            order.append(first[key] + np.array([*places], np.int64))
        return scores.reordered(np.concatenate(order))

    def _score(self, groups: list[tuple[Integers, _Layout]]) -> npt.NDArray[np.float64]:
        """Return the log-probabilities of the scored tokens, by one call of the output layer."""
        first = np.cumsum([0, *(layout.states for _, layout in groups)])
        # One allocation: small ones between the batches would fragment the heap.
        states = torch.empty(
            (int(first[-1]), self.model.config.d_model),
            dtype=self.model.dtype,
            device=self.model.device,
        )

        def read(batch: list[int]) -> list[None]:
            self._read([groups[k] for k in batch], first[np.array(batch)], states)
            return [None] * len(batch)

        lengths = [len(source) for source, _ in groups]
        description = f"{self.name}: {len(groups)} blanks"
        run_batched(lengths, self.batch_tokens, read, description, self.padding)
        predicting = [layout.predicting + k for (_, layout), k in zip(groups, first, strict=False)]
        log_probs = token_log_probs(
            self.model,
            states,
            torch.from_numpy(np.concatenate(predicting)),
            torch.from_numpy(np.concatenate([layout.tokens for _, layout in groups])),
            block=self.block,
        )
        return log_probs.cpu().double().numpy()

    def _read(
        self, groups: Sequence[tuple[Integers, _Layout]], first: Integers, states: Tensor
    ) -> None:
        """Run sources and their decoder rows; write the predicting states of each from `first`."""
        pad = self.declared_padding or 0
        ids, mask = pad_rows([source for source, _ in groups], pad, self.model.device)
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        rows = [row for _, layout in groups for row in layout.rows]
        owners = np.repeat(np.arange(len(groups)), [len(layout.rows) for _, layout in groups])
        begins = np.array([row.begin for row in rows]) + first[owners]

        def decode(batch: list[int]) -> list[None]:
            chosen = [rows[i] for i in batch]
            read, _ = pad_rows([row.read for row in chosen], pad, self.model.device)
            source = torch.from_numpy(owners[batch]).to(self.model.device)
            hidden, _ = states_and_output(
                self.model,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded[source]),
                attention_mask=mask[source],
                decoder_input_ids=read,
            )
            unused = np.array([row.unused for row in chosen])
            sizes = np.array([len(row.read) for row in chosen]) - unused
            steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            places = np.arange(len(chosen)) * read.shape[1] + unused, begins[batch]
            both = np.stack([steps + np.repeat(place, sizes) for place in places])
            taken, kept = torch.from_numpy(both).to(states.device)
            states.index_copy_(0, kept, hidden.flatten(0, 1)[taken])
            return [None] * len(batch)

        # A decoder row also takes the memory of its source's states, about half of what the encoder
        # takes for a token.
        encoder = np.array([len(source) for source, _ in groups])
        decoder = np.array([len(row.read) for row in rows])
        lengths = (decoder + (encoder[owners] + 1) // 2).tolist()
        run_batched(lengths, self.batch_tokens, decode, self.name, self.padding)


def _masked(blank: Blank, mask: str) -> Pieces:
    """Return a pattern with a mask at its blank."""
    left, space = glued(blank.left)
    right, rest = glued(blank.right)
    last = "".join(left[-1:]) + space
    return tuple(piece for piece in (*left[:-1], last, mask, *right, rest) if piece)


class _DecoderRow(NamedTuple):
    """Decoder input, its leading states that predict no scored token, and its first state."""

    read: Ids
    unused: int
    begin: int


class _Layout(NamedTuple):
    """Decoder rows of the fillings of a source, and their scored tokens, filling by filling."""

    rows: list[_DecoderRow]
    states: int
    predicting: Integers
    tokens: Integers
    sizes: Integers


def _layout(fillings: tuple[Filling, ...]) -> _Layout:
    """Merge fillings into decoder rows: an input may be a prefix of another."""
    merged: list[tuple[Ids, list[int]]] = []
    for i in sorted(range(len(fillings)), key=lambda i: -len(fillings[i].read)):
        read = fillings[i].read
        for longer, members in merged:
            if longer[: len(read)] == read:
                members.append(i)
                break
        else:
            merged.append((read, [i]))
    rows, states, starts = [], 0, [0] * len(fillings)
    for read, members in merged:
        unused = min(len(fillings[i].given) for i in members) - 1
        rows.append(_DecoderRow(read, unused, states))
        for i in members:
            starts[i] = states + len(fillings[i].given) - 1 - unused
        states += len(read) - unused
    scored = [filling.scored for filling in fillings]
    predicting = [s + k for s, each in zip(starts, scored, strict=True) for k in range(len(each))]
    arrays = predicting, [token for each in scored for token in each], [*map(len, scored)]
    return _Layout(rows, states, *(np.array(values, np.int64) for values in arrays))
