"""Infilling with encoder-decoders: PEGASUS, T5, BART and related families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PretrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from ctrlreward.engine.batching import Ids, pad_rows, run_batched
from ctrlreward.engine.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)
from ctrlreward.engine.sharing import Request, Requests
from ctrlreward.models.control_tokens import control_tokens, mark, real_ids, text_reader
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.tasks import Blank, TokenScores
from ctrlreward.models.tokenization import encode_texts, warn_truncated


def conditional_log_probs(
    model: Seq2SeqInfiller, sources: Mapping[str, str], targets: Mapping[str, str]
) -> list[TokenScores]:
    """Return the scores of each target's tokens given its source, in the given order.

    The encoder reads the source and the decoder the target, as in training for translation or
    summarization; special tokens that the tokenizer adds to the target are predicted as well. Equal
    sources are encoded once. Both are n texts by their names in warnings (`"sources[3]"`).
    """
    start = model.model.config.decoder_start_token_id
    fillings = _encode(model, targets, model.decoder_limit or model.max_tokens)
    rows = _encode(model, sources, model.max_tokens)
    scored = model.fill(rows, [[Filling((start,), ids)] for ids in fillings])
    return [scores for (scores,) in scored]


def _encode(model: Seq2SeqInfiller, texts: Mapping[str, str], limit: int) -> list[Ids]:
    return encode_texts(model.tokenizer, [*texts.values()], limit, [*texts].__getitem__)


# Approximate decoder states per call of the output layer, since each call reads all weights.
_STATES_PER_CALL = 2**13

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
    """Infiller over an encoder-decoder that was pretrained to fill masks.

    Each distinct masked text is encoded once. Targets share a decoder row if the input of one is
    a prefix of another's: all one-token words are scored by a single decoder step.
    """

    auto_class = AutoModelForSeq2SeqLM

    def _prepare(self) -> None:
        self._check()
        self._mask, self._filling = _family(self.model.config, self.tokenizer)
        # Positions of the decoder; T5 does not have a limit.
        self.decoder_limit: int | None = getattr(self.model.config, "max_position_embeddings", None)

    def _check(self) -> bool:
        """Check the output layer."""
        check_output_layer(self.model)
        return True

    def requests(self, blanks: Sequence[Blank]) -> Requests[list[list[TokenScores]]]:
        """See `Infiller.requests`."""
        return (yield Request(self, blanks))

    def log_probs(self, blanks: Sequence[Blank]) -> list[list[TokenScores]]:
        """Return the scores of each target of each blank, in the given order."""
        if not blanks:
            return []
        if self._mask == _NO_MASK:
            raise ValueError(
                f"the tokenizer of model = {self.name!r} has no mask token for blanks. Use the "
                "tokenizer that the model was pretrained with."
            )
        masked = [blank.left + mark(self._mask) + blank.right for blank in blanks]
        rows = text_reader(self.tokenizer, masked)(masked, verbose=False).input_ids
        sources = [real_ids(self.tokenizer, row) for row in rows]
        fillings = [[self._filling(blank, t) for t in blank.targets] for blank in blanks]
        lengths = [len(ids) for ids in sources]
        read = [len(filling.read) for group in fillings for filling in group]
        warn_truncated("patterns", lengths, self.max_tokens, "tokens farthest from the blank")
        warn_truncated("fillings", read, self.decoder_limit, "their last tokens", "decoder")
        return self.fill(
            [self._around_mask(tuple(ids), self._mask) for ids in sources],
            [[filling.truncate(self.decoder_limit) for filling in group] for group in fillings],
        )

    def _around_mask(self, ids: Ids, mask: int) -> Ids:
        """Truncate a masked text around its mask to the model's context."""
        if len(ids) <= self.max_tokens:
            return ids
        start = min(max(0, ids.index(mask) - self.max_tokens // 2), len(ids) - self.max_tokens)
        return (*ids[start : start + self.max_tokens - 1], ids[-1])

    def fill(self, sources: list[Ids], fillings: list[list[Filling]]) -> list[list[TokenScores]]:
        """Score the fillings of each masked text; equal texts are encoded once."""
        wanted: dict[Ids, dict[Filling, None]] = {}
        for source, group in zip(sources, fillings, strict=True):
            wanted.setdefault(source, {}).update(dict.fromkeys(group))
        groups = list(wanted.items())
        ends = np.cumsum([sum(len(filling.scored) for filling in group) for _, group in groups])
        scores: dict[tuple[Ids, Filling], TokenScores] = {}
        for _, run in groupby(range(len(groups)), lambda i: ends[i] // _STATES_PER_CALL):
            scores |= self._score([groups[i] for i in run])
        return [
            [scores[source, filling] for filling in group]
            for source, group in zip(sources, fillings, strict=True)
        ]

    def _score(
        self, groups: list[tuple[Ids, dict[Filling, None]]]
    ) -> dict[tuple[Ids, Filling], TokenScores]:
        """Score the fillings of each source with one call of the output layer."""
        rows = [_decoder_rows(fillings) for _, fillings in groups]
        sizes = [row.states for group in rows for row in group]
        # One allocation: small ones between the batches would fragment the heap.
        states = torch.empty(
            (sum(sizes), self.model.config.d_model),
            dtype=self.model.dtype,
            device=self.model.device,
        )
        views = iter(states.split(sizes))
        kept = [[next(views) for _ in group] for group in rows]
        run_batched(
            [len(source) for source, _ in groups],
            self.batch_tokens,
            lambda batch: self._read([(groups[i][0], rows[i], kept[i]) for i in batch]),
            f"{self.name}: {len(groups)} blanks",
        )
        keys: list[tuple[Ids, Filling]] = []
        predicting: list[int] = []
        first = 0
        for (source, _), group in zip(groups, rows, strict=True):
            for row in group:
                for filling in row.fillings:
                    start = first + len(filling.given) - 1 - row.unused
                    predicting += range(start, start + len(filling.scored))
                    keys.append((source, filling))
                first += row.states
        scored = [token for _, filling in keys for token in filling.scored]
        tokens, places = torch.tensor([scored, predicting], dtype=torch.long)
        log_probs = token_log_probs(self.model, states, places, tokens)
        ends = np.cumsum([len(filling.scored) for _, filling in keys])[:-1]
        parts = (np.split(x, ends) for x in (tokens.numpy(), log_probs.cpu().double().numpy()))
        return dict(zip(keys, map(TokenScores, *parts), strict=True))

    def _read(self, work: list[tuple[Ids, list[_DecoderRow], list[Tensor]]]) -> list[None]:
        """Run sources and their decoder rows; copy each row's predicting states to its view."""
        pad = self.model.config.pad_token_id
        ids, mask = pad_rows([source for source, _, _ in work], pad, self.model.device)
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        flat = [
            (k, row, view)
            for k, (_, rows, views) in enumerate(work)
            for row, view in zip(rows, views, strict=True)
        ]

        def decode(batch: list[int]) -> list[None]:
            chosen = [flat[i] for i in batch]
            read, _ = pad_rows([row.read for _, row, _ in chosen], pad, self.model.device)
            source = torch.tensor([k for k, _, _ in chosen], device=self.model.device)
            hidden, _ = states_and_output(
                self.model,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded[source]),
                attention_mask=mask[source],
                decoder_input_ids=read,
            )
            for states, (_, row, view) in zip(hidden, chosen, strict=True):
                view.copy_(states[row.unused : len(row.read)])
            return [None] * len(batch)

        # A decoder row also takes the memory of its source's states.
        lengths = [len(row.read) + len(work[k][0]) for k, row, _ in flat]
        run_batched(lengths, self.batch_tokens, decode, self.name)
        return [None] * len(work)


class _DecoderRow(NamedTuple):
    """Decoder input, and the fillings that it scores."""

    read: Ids
    fillings: list[Filling]

    @property
    def unused(self) -> int:
        """Number of leading states that predict no scored token."""
        return min(len(filling.given) for filling in self.fillings) - 1

    @property
    def states(self) -> int:
        """Number of remaining states, one per input token."""
        return len(self.read) - self.unused


def _decoder_rows(fillings: Iterable[Filling]) -> list[_DecoderRow]:
    """Merge fillings into decoder rows: an input may be a prefix of another."""
    rows: list[_DecoderRow] = []
    for filling in sorted(fillings, key=lambda f: -len(f.read)):
        for row in rows:
            if row.read[: len(filling.read)] == filling.read:
                row.fillings.append(filling)
                break
        else:
            rows.append(_DecoderRow(filling.read, [filling]))
    return rows


def _family(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, Callable[[Blank, str], Filling]]:
    """Return a family's mask token, if any, and its decoder sequence for a blank."""
    start = config.decoder_start_token_id

    @lru_cache(maxsize=256)  # for the words of a task, shared by all texts
    def ids(text: str) -> Ids:
        return tuple(text_reader(tokenizer, [text])(text, add_special_tokens=False).input_ids)

    def gap_sentence(blank: Blank, target: str) -> Filling:
        """PEGASUS: the decoder generates the missing text, then the end token."""
        end = (tokenizer.eos_token_id,) if blank.ends else ()
        return Filling((start,), ids(target) + end)

    def sentinel(blank: Blank, target: str) -> Filling:
        """T5: the sentinel, then the missing text; the closing sentinel is not scored."""
        return Filling((start, mask), ids(target.strip()))

    def whole_text(blank: Blank, target: str) -> Filling:
        """BART: the decoder generates the whole text; it is given up to the blank, then scored."""
        left = blank.left.strip()
        given = (start, tokenizer.bos_token_id, *ids(left))
        return Filling(given, ids(" " + target.strip() if left else target.strip()))

    families = {
        "pegasus": ("<mask_1>", gap_sentence),
        "t5": ("<extra_id_0>", sentinel),
        "mt5": ("<extra_id_0>", sentinel),
        "umt5": ("<extra_id_0>", sentinel),
        "bart": ("<mask>", whole_text),
    }
    if config.model_type not in families:
        raise ValueError(
            f"{config.model_type} models are not supported for infilling. Use an encoder-decoder "
            f"of {', '.join(families)}, or a decoder-only model."
        )
    token, filling = families[config.model_type]
    mask = control_tokens(tokenizer).get(token, _NO_MASK)
    return mask, filling
