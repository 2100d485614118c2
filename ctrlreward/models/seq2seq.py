"""Infilling with encoder-decoders: PEGASUS, T5, BART and related families."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from ctrlreward.models.batching import Ids, in_windows, pad_rows, run_batched
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import Pieces, control_tokens
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.loading import load_config
from ctrlreward.models.output_layer import check_output_layer, states_and_output
from ctrlreward.models.prefix_trees import Row, padded_inputs, score_rows, trees
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.tasks import Patterns, TokenScores
from ctrlreward.models.tokenization import (
    NOTHING,
    Integers,
    chunked,
    encode_texts,
    read_chunks,
    read_strings,
    reads_apart,
    special_ids,
    warn_truncated,
)


def load_infiller(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> Seq2SeqInfiller | CausalLM:
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
            raise ValueError(f"model must be of {', '.join(_MASKS)}, got a {self._family}")
        self._mask = control_tokens(self.tokenizer).get(_MASKS[self._family], _NO_MASK)
        self._apart = reads_apart(self.tokenizer)
        self._special = special_ids(self.tokenizer)
        # Words that all texts share.
        self._fillings = lru_cache(maxsize=256)(self._read_fillings)
        # Positions of the decoder; T5 does not have a limit.
        self.decoder_limit: int | None = getattr(self.model.config, "max_position_embeddings", None)

    def answer(self, tasks: Sequence[Patterns]) -> list[TokenScores]:
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
            raise ValueError(f"model = {self.name!r} must have a mask token for blanks")
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
            (read,) = read_strings(self.tokenizer, [left])["input_ids"]
            given = (start, self.tokenizer.bos_token_id, *read)
            if left and joined:  # with the space, if any, between both
                strings = [target.rstrip() for target in targets]
        rows = read_strings(self.tokenizer, strings)["input_ids"]
        return tuple(Filling(given, (*row, *end)) for row in rows)

    def _encode(self, rows: Sequence[Pieces]) -> list[Integers]:
        cuts = [chunked(row, self._apart) for row in rows]
        chunks = [*dict.fromkeys(chain.from_iterable(cuts))]
        readings = dict(zip(chunks, read_chunks(self.tokenizer, chunks), strict=True))
        before, after = self._special
        return [
            np.array([*before, *(i for c in cut for i in readings[c].ids), *after], np.int64)
            for cut in cuts
        ]

    def _around_mask(self, ids: Integers) -> Integers:
        if len(ids) <= self.max_tokens:
            return ids
        place = int(np.flatnonzero(ids == self._mask)[0])
        start = min(max(0, place - self.max_tokens // 2), len(ids) - self.max_tokens)
        return np.concatenate([ids[start : start + self.max_tokens - 1], ids[-1:]])

    def fill(
        self, sources: Sequence[Integers], fillings: Sequence[tuple[Filling, ...]]
    ) -> TokenScores:
        """Score the fillings of all masked texts, in order; equal texts are encoded once."""
        owned: dict[bytes, tuple[Integers, list[Row]]] = {}
        tokens, sizes = [NOTHING], [NOTHING]
        first = 0
        for source, group in zip(sources, fillings, strict=True):
            forest = trees([([*each.given, *each.scored], len(each.given)) for each in group], 0)
            _, rows = owned.setdefault(source.tobytes(), (source, []))
            rows += [Row(NOTHING, tree, first) for tree in forest.trees if tree.places.size]
            tokens.append(forest.tokens)
            sizes.append(forest.sizes)
            first += len(forest.tokens)
        scored = np.concatenate(tokens)
        log_probs = np.full(len(scored), np.nan)
        texts = [*owned.values()]
        read = partial(self._read, texts, scored, log_probs)
        lengths = [len(source) for source, _ in texts]
        run_batched(lengths, self.batch_tokens, read, self.padding)
        return TokenScores(scored, log_probs, np.concatenate(sizes))

    def _read(
        self,
        texts: Sequence[tuple[Integers, list[Row]]],
        tokens: Integers,
        log_probs: npt.NDArray[np.float64],
        batch: list[int],
    ) -> list[None]:
        """Encode sources, and write the log-probabilities of what is filled into them."""
        pad = self.declared_padding or 0
        sources = [texts[i][0] for i in batch]
        ids, mask = pad_rows(sources, pad, self.model.device)
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        rows = [row for i in batch for row in texts[i][1]]
        owners = [place for place, i in enumerate(batch) for _ in texts[i][1]]

        def decode(part: list[int]) -> list[None]:
            chosen = [rows[i] for i in part]
            of = torch.tensor([owners[i] for i in part], device=self.model.device)
            hidden, _ = states_and_output(
                self.model,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded[of]),
                attention_mask=mask[of],
                decoder_input_ids=padded_inputs(self.model, chosen)["input_ids"],
            )
            score_rows(self.model, hidden, chosen, tokens, log_probs, self.block)
            return [None] * len(part)

        # A decoder row also takes the memory of its source's states, about half of what the encoder
        # takes for a token.
        sizes = zip(rows, owners, strict=True)
        lengths = [row.size + (len(sources[owner]) + 1) // 2 for row, owner in sizes]
        run_batched(lengths, self.batch_tokens, decode, self.padding)
        return [None] * len(batch)
