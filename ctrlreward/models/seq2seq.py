"""Infilling with encoder-decoders: PEGASUS, T5, BART and related families."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from ctrlreward.models.batching import Ids, in_windows, pad_rows, run_batched
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import Pieces, control_tokens
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.loading import load_config
from ctrlreward.models.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.tasks import Infiller, Patterns, TokenScores
from ctrlreward.models.tokenization import (
    NOTHING,
    Integers,
    chunked,
    encode_texts,
    read_chunks,
    read_strings,
    reads_apart,
    spans,
    special_ids,
    warn_truncated,
)
from ctrlreward.progress import track


def load_infiller(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> Infiller:
    """Load an infiller, shared by all calls with equal arguments: masked, or prompted."""
    if load_config(model).is_encoder_decoder:
        return shared_model(Seq2SeqInfiller, model, device, dtype, batch_tokens)
    return shared_model(CausalLM, model, device, dtype, batch_tokens)


def conditional_log_probs(
    model: Seq2SeqInfiller, sources: Sequence[str], targets: Sequence[str]
) -> list[TokenScores]:
    """Return the scores of each target's tokens, special ones included, given its source."""
    start = model.model.config.decoder_start_token_id
    limit = model.decoder_limit or model.max_tokens
    fillings = encode_texts(model.tokenizer, targets, limit)
    read = encode_texts(model.tokenizer, sources, model.max_tokens)
    rows = [np.array(ids, np.int64) for ids in read]
    scores = model.fill(rows, [(Filling((start,), ids),) for ids in fillings])
    return scores.split([1] * len(rows))


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
        self._apart = reads_apart(self.tokenizer)
        # Words that all texts share.
        self._fillings = lru_cache(maxsize=256)(self._read_fillings)
        self._layout = lru_cache(maxsize=256)(_layout)
        # Positions of the decoder; T5 does not have a limit.
        self.decoder_limit: int | None = getattr(self.model.config, "max_position_embeddings", None)

    def answer(self, tasks: Sequence[Patterns]) -> list[TokenScores]:
        """Return the scores of the targets of each task, blank by blank."""
        lengths: list[int] = []
        read: list[int] = []
        answer = partial(self._answer, lengths=lengths, read=read)
        answers = in_windows(tasks, [task.size for task in tasks], answer, self.batch_tokens)
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
        # The text may be part of what the decoder is given.
        blanks = [blank.about(task.text) for task in tasks for blank in task.blanks]
        sources = self._encode([(*blank.left, self._mask, *blank.right) for blank in blanks])
        is_bart = self._family == "bart"
        fillings = [
            self._fillings(blank.left if is_bart else (), blank.targets, blank.ends, blank.joined)
            for blank in blanks
        ]
        lengths += [len(ids) for ids in sources]
        read += [len(filling.read) for group in fillings for filling in group]
        if self.decoder_limit and max(read, default=0) > self.decoder_limit:
            fillings = [
                tuple(each.truncate(self.decoder_limit) for each in group) for group in fillings
            ]
        scores = self.fill([self._around_mask(ids) for ids in sources], fillings)
        return scores.split([sum(len(blank.targets) for blank in task.blanks) for task in tasks])

    def _read_fillings(
        self, before: tuple[str, ...], targets: tuple[str, ...], ends: bool, joined: bool
    ) -> tuple[Filling, ...]:
        """Return the decoder sequence of each target, as the family was pretrained.

        `before` is the text before the blank, which BART's decoder is given.
        """
        start = self.model.config.decoder_start_token_id
        left = "".join(before).strip()
        given: Ids = (start, self._mask)
        strings = [f"{' ' if left else ''}{target.strip()}" for target in targets]
        end: Ids = ()
        if self._family == "pegasus":  # the missing text, then the end token
            given, strings = (start,), [*targets]
            end = (self.tokenizer.eos_token_id,) if ends else ()
        elif self._family == "bart":  # the whole text, which is given up to the blank
            given = (start, self.tokenizer.bos_token_id, *self._read_string(left))
            if left and joined:  # with the space, if any, between both
                strings = [target.rstrip() for target in targets]
        rows = read_strings(self.tokenizer, strings)["input_ids"]
        return tuple(Filling(given, (*row, *end)) for row in rows)

    def _read_string(self, text: str) -> list[int]:
        ids: list[int] = read_strings(self.tokenizer, [text])["input_ids"][0]
        return ids

    def _encode(self, rows: Sequence[Pieces]) -> list[Integers]:
        """Return the ids of strings in pieces, with special tokens."""
        cuts = [chunked(row, self._apart) for row in rows]
        chunks = [*dict.fromkeys(chain.from_iterable(cuts))]
        readings = dict(zip(chunks, read_chunks(self.tokenizer, chunks), strict=True))
        before, after = self._special
        return [
            np.array([*before, *(i for c in cut for i in readings[c].ids), *after], np.int64)
            for cut in cuts
        ]

    @cached_property
    def _special(self) -> tuple[Ids, Ids]:
        return special_ids(self.tokenizer)

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
        asked = [*zip((source.tobytes() for source in sources), fillings, strict=True)]
        distinct: dict[bytes, _Source] = {}
        for (key, group), source in zip(asked, sources, strict=True):
            distinct.setdefault(key, _Source(source, {})).layouts[group] = self._layout(group)
        ends = np.cumsum(
            [sum(len(each.tokens) for each in s.layouts.values()) for s in distinct.values()]
        )
        most = max(_STATES_PER_CALL, self.batch_tokens)
        keys = [(key, group) for key, source in distinct.items() for group in source.layouts]
        log_probs: list[npt.NDArray[np.float64]] = []
        scored = [*distinct.values()]
        with track("reading", len(scored)) as progress:
            for _, run in groupby(range(len(scored)), lambda i: ends[i] // most):
                together = [scored[i] for i in run]
                with progress.part(len(together)):
                    log_probs += self._score(together)
        found = dict(zip(keys, log_probs, strict=True))
        layouts = [distinct[key].layouts[group] for key, group in asked]
        return TokenScores(
            np.concatenate([NOTHING, *(layout.tokens for layout in layouts)]),
            np.concatenate([np.zeros(0), *(found[each] for each in asked)]),
            np.concatenate([NOTHING, *(layout.sizes for layout in layouts)]),
        )

    def _score(self, sources: Sequence[_Source]) -> list[npt.NDArray[np.float64]]:
        """Return the log-probabilities of each layout, by one call of the output layer."""
        layouts = [layout for source in sources for layout in source.layouts.values()]
        first = np.cumsum([0, *(layout.states for layout in layouts)])
        owners = np.repeat(np.arange(len(sources)), [len(source.layouts) for source in sources])
        # One allocation: small ones between the batches would fragment the heap.
        states = torch.empty(
            (int(first[-1]), self.model.config.d_model),
            dtype=self.model.dtype,
            device=self.model.device,
        )
        rows = [
            _PlacedRow(row.read, row.unused, row.begin + int(start), int(owner))
            for layout, start, owner in zip(layouts, first[:-1], owners, strict=True)
            for row in layout.rows
        ]
        lengths = [len(source.ids) for source in sources]
        read = partial(self._read, sources, rows, states)
        run_batched(lengths, self.batch_tokens, read, self.padding)
        predicting = [each.predicting + k for each, k in zip(layouts, first[:-1], strict=True)]
        values = token_log_probs(
            self.model,
            states,
            torch.from_numpy(np.concatenate(predicting)),
            torch.from_numpy(np.concatenate([layout.tokens for layout in layouts])),
            block=self.block,
        )
        edges = np.cumsum([len(layout.tokens) for layout in layouts])[:-1]
        return np.split(values.cpu().double().numpy(), edges)

    def _read(
        self,
        sources: Sequence[_Source],
        rows: Sequence[_PlacedRow],
        states: Tensor,
        batch: list[int],
    ) -> list[None]:
        """Run some sources and their decoder rows; write the predicting states."""
        pad = self.declared_padding or 0
        ids, mask = pad_rows([sources[i].ids for i in batch], pad, self.model.device)
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        place = {source: k for k, source in enumerate(batch)}
        own = [row for row in rows if row.owner in place]
        own = [row._replace(owner=place[row.owner]) for row in own]
        # A decoder row also takes the memory of its source's states, about half of what the encoder
        # takes for a token.
        lengths = [len(row.read) + (len(sources[batch[row.owner]].ids) + 1) // 2 for row in own]
        decode = partial(self._decode, encoded, mask, own, states)
        run_batched(lengths, self.batch_tokens, decode, self.padding)
        return [None] * len(batch)

    def _decode(
        self,
        encoded: Tensor,
        mask: Tensor,
        rows: Sequence[_PlacedRow],
        states: Tensor,
        batch: list[int],
    ) -> list[None]:
        """Run some decoder rows after their encoded sources; write the predicting states."""
        chosen = [rows[i] for i in batch]
        read, _ = pad_rows(
            [row.read for row in chosen], self.declared_padding or 0, self.model.device
        )
        owners = torch.tensor([row.owner for row in chosen], device=self.model.device)
        hidden, _ = states_and_output(
            self.model,
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded[owners]),
            attention_mask=mask[owners],
            decoder_input_ids=read,
        )
        unused = np.array([row.unused for row in chosen])
        sizes = np.array([len(row.read) for row in chosen]) - unused
        begins = np.array([row.begin for row in chosen])
        width = read.shape[1]
        starts = np.arange(len(chosen)) * width + unused, begins
        both = np.stack([spans(start, sizes) for start in starts])
        taken, kept = torch.from_numpy(both).to(states.device)
        states.index_copy_(0, kept, hidden.flatten(0, 1)[taken])
        return [None] * len(batch)


class _DecoderRow(NamedTuple):
    """Decoder input, its leading states that predict no scored token, and its first state."""

    read: Ids
    unused: int
    begin: int


class _PlacedRow(NamedTuple):
    """A decoder row, its first state among all, and the place of its source."""

    read: Ids
    unused: int
    begin: int
    owner: int


class _Source(NamedTuple):
    """Input of the encoder, and the decoder rows of each group of fillings."""

    ids: Integers
    layouts: dict[tuple[Filling, ...], _Layout]


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
