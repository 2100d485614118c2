"""Infilling with encoder-decoders: PEGASUS, T5, BART and their kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PretrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from ctrlreward.engine.batching import Ids, pad_rows, run_batched, runs, token_budget
from ctrlreward.engine.output_layer import (
    Targets,
    check_output_layer,
    hidden_states,
    target_log_probs,
)
from ctrlreward.engine.requests import Request, Requests
from ctrlreward.models.tasks import Blank, TokenScores, empty_scores
from ctrlreward.models.tokenization import max_tokens, warn_of_cuts
from ctrlreward.weights.loading import load_frozen, load_tokenizer

# The output layer reads its weights, of which a large vocabulary has many, once for so many states.
_STATES_AT_A_TIME = 2**13


class Filling(NamedTuple):
    """What the decoder is given, and the tokens that it is then scored on."""

    given: Ids
    scored: Ids

    @property
    def read(self) -> Ids:
        """All that goes into the decoder: the last token is only predicted."""
        return (self.given + self.scored)[:-1]

    def cut(self, limit: int | None) -> Filling:
        """As much as a decoder of so many positions reads: the two tokens that open it, and what
        is nearest to the blank."""
        if not limit:
            return self
        dropped = max(0, min(len(self.read) - limit, len(self.given) - 2))
        given = self.given[:2] + self.given[2 + dropped :]
        return Filling(given, self.scored[: limit + 1 - len(given)])


class Seq2SeqInfiller:
    """Fills blanks with an encoder-decoder that was pretrained to do so.

    Each distinct masked text is encoded once. Its targets share a decoder row where one reads
    what another begins with: all one-token words are scored by a single decoder step.

    Args:
        model: Local folder, hub id or short name.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Raises:
        ValueError: The model is of a family whose way of masking is not known here.
    """

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.name = model
        self.model = load_frozen(AutoModelForSeq2SeqLM, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = token_budget(self.model, batch_tokens)
        check_output_layer(self.model)
        self._mask, self._filling = _family(self.model.config, self.tokenizer)
        self._limit = max_tokens(self.tokenizer, self.model.config)
        # Of the decoder; T5 counts none.
        self._positions: int | None = getattr(self.model.config, "max_position_embeddings", None)

    def requests(self, blanks: Sequence[Blank]) -> Requests[list[list[TokenScores]]]:
        """See `Infiller.requests`."""
        return (yield Request(self, blanks))

    def log_probs(self, blanks: Sequence[Blank]) -> list[list[TokenScores]]:
        """For each blank, the scores of each of its targets, in the given order."""
        if not blanks:
            return []
        masked = [blank.left + self._mask + blank.right for blank in blanks]
        sources = self.tokenizer(masked, verbose=False).input_ids
        fillings = [[self._filling(blank, t) for t in blank.targets] for blank in blanks]
        lengths = [len(ids) for ids in sources]
        read = [len(filling.read) for group in fillings for filling in group]
        warn_of_cuts("patterns", lengths, self._limit, "what is farthest from the blank")
        warn_of_cuts("fillings", read, self._positions, "the rest", "decoder")
        return self._fill(
            [self._around_mask(tuple(ids)) for ids in sources],
            [[filling.cut(self._positions) for filling in group] for group in fillings],
        )

    def _around_mask(self, ids: Ids) -> Ids:
        """A masked text, cut around the mask where the model reads no more."""
        if len(ids) <= self._limit:
            return ids
        mask = self.tokenizer.convert_tokens_to_ids(self._mask)
        start = min(max(0, ids.index(mask) - self._limit // 2), len(ids) - self._limit)
        return (*ids[start : start + self._limit - 1], ids[-1])

    def _fill(self, sources: list[Ids], fillings: list[list[Filling]]) -> list[list[TokenScores]]:
        """The scores of each masked text's fillings; equal texts are encoded once."""
        places: dict[Ids, list[int]] = {}
        for i, ids in enumerate(sources):
            places.setdefault(ids, []).append(i)
        distinct = list(places)
        together = [[filling for i in rows for filling in fillings[i]] for rows in places.values()]
        states = [sum(len(filling.scored) for filling in group) for group in together]
        scored: list[list[TokenScores]] = []
        for some in runs(range(len(distinct)), states, _STATES_AT_A_TIME):
            scored += self._score([distinct[i] for i in some], [together[i] for i in some])
        results: dict[int, list[TokenScores]] = {}
        for rows, scores in zip(places.values(), scored, strict=True):
            remaining = iter(scores)
            results.update({i: [next(remaining) for _ in fillings[i]] for i in rows})
        return [results[i] for i in range(len(sources))]

    def _score(self, sources: list[Ids], fillings: list[list[Filling]]) -> list[list[TokenScores]]:
        """The scores of each source's fillings, by one call of the output layer."""
        rows = [_decoder_rows(group) for group in fillings]
        sizes = [row.states for own in rows for row in own]
        # One piece of memory: kept one by one, states would part the heap between the batches.
        everything = torch.empty(
            (sum(sizes), self.model.config.d_model),
            dtype=self.model.dtype,
            device=self.model.device,
        )
        pieces = iter(everything.split(sizes))
        kept = [[next(pieces) for _ in own] for own in rows]
        run_batched(
            [len(source) for source in sources],
            self.batch_tokens,
            lambda batch: self._read([(sources[i], rows[i], kept[i]) for i in batch]),
            f"{self.name}: {len(sources)} blanks",
        )
        asked: list[tuple[int, Filling]] = []
        targets = []
        first = 0
        for k, own in enumerate(rows):
            for row in own:
                for filling in row.fillings:
                    start = first + len(filling.given) - 1 - row.unused
                    places = range(start, start + len(filling.scored))
                    targets.append(Targets(places, filling.scored))
                    asked.append((k, filling))
                first += row.states
        scores = empty_scores([filling.scored for _, filling in asked])
        found = target_log_probs(self.model, everything, targets)
        for score, log_probs in zip(scores, found, strict=True):
            score.log_probs[:] = log_probs
        of = dict(zip(asked, scores, strict=True))
        return [[of[k, filling] for filling in group] for k, group in enumerate(fillings)]

    def _read(self, work: list[tuple[Ids, list[_DecoderRow], list[Tensor]]]) -> list[None]:
        """Reads sources and their decoder rows, and keeps each row's states that predict."""
        pad = self.model.config.pad_token_id
        ids, mask = pad_rows([source for source, _, _ in work], pad, self.model.device)
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        flat = [
            (k, row, place)
            for k, (_, rows, kept) in enumerate(work)
            for row, place in zip(rows, kept, strict=True)
        ]

        def decode(batch: list[int]) -> list[None]:
            chosen = [flat[i] for i in batch]
            read, _ = pad_rows([row.read for _, row, _ in chosen], pad, self.model.device)
            source = torch.tensor([k for k, _, _ in chosen], device=self.model.device)
            hidden = hidden_states(
                self.model,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded[source]),
                attention_mask=mask[source],
                decoder_input_ids=read,
            )
            for states, (_, row, place) in zip(hidden, chosen, strict=True):
                place.copy_(states[row.unused : len(row.read)])
            return [None] * len(batch)

        # A decoder row holds the states of its source beside its own tokens.
        lengths = [len(row.read) + len(work[k][0]) for k, row, _ in flat]
        run_batched(lengths, self.batch_tokens, decode, self.name)
        return [None] * len(work)


class _DecoderRow(NamedTuple):
    """One pass of the decoder, and the fillings that it scores."""

    read: Ids
    fillings: list[Filling]

    @property
    def unused(self) -> int:
        """How many of its first states predict nothing that is scored."""
        return min(len(filling.given) for filling in self.fillings) - 1

    @property
    def states(self) -> int:
        """How many states are left, one for each token that is read."""
        return len(self.read) - self.unused


def _decoder_rows(fillings: Sequence[Filling]) -> list[_DecoderRow]:
    """As few rows as serve all fillings: what one reads may be the beginning of another's."""
    rows: list[_DecoderRow] = []
    for filling in sorted(set(fillings), key=lambda f: -len(f.read)):
        for row in rows:
            if row.read[: len(filling.read)] == filling.read:
                row.fillings.append(filling)
                break
        else:
            rows.append(_DecoderRow(filling.read, [filling]))
    return rows


def _family(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, Callable[[Blank, str], Filling]]:
    """The mask token of a model family, and what its decoder writes for a filled blank."""
    start = config.decoder_start_token_id

    @lru_cache(maxsize=256)  # the words of a task, which all its texts share
    def ids(text: str) -> Ids:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    def gap_sentence(blank: Blank, target: str) -> Filling:
        """PEGASUS writes the missing text alone, then the end token."""
        end = (tokenizer.eos_token_id,) if blank.ends else ()
        return Filling((start,), ids(target) + end)

    def sentinel(blank: Blank, target: str) -> Filling:
        """T5 opens each span with its sentinel; the closing one is left out of the target."""
        return Filling((start, *ids("<extra_id_0>")), ids(target.strip()))

    def whole_text(blank: Blank, target: str) -> Filling:
        """BART writes the whole text again: up to the blank it is given, then scored."""
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
            f"{config.model_type} models have no known way of masking: give an encoder-decoder of "
            f"{', '.join(families)}, or a decoder-only model"
        )
    return families[config.model_type]
