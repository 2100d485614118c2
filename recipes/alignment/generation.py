"""Writing text: generation in batches, of which the callers decide what is read and kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.engine.batching import Ids, pad_rows, run_batched
from ctrlreward.samples import shortened

log = logging.getLogger(__name__)


def sampled(model: PreTrainedModel, temperature: float, top_p: float) -> GenerationConfig:
    """Generation by sampling, with the model's own special tokens.

    Args:
        model: What is to write.
        temperature: Above 0.
        top_p: Only the likeliest tokens of this total probability are drawn from.
    """
    config = copy.deepcopy(model.generation_config)
    config.update(do_sample=True, num_beams=1, temperature=temperature, top_p=top_p, top_k=0)
    return config


def searched(model: PreTrainedModel, beams: int) -> GenerationConfig:
    """Generation by beam search, with the model's own special tokens."""
    config = copy.deepcopy(model.generation_config)
    config.update(do_sample=False, num_beams=beams)
    return config


def write_readable(
    texts: Sequence[str],
    rows: Sequence[Ids],
    limit: int,
    batch_tokens: int,
    forward: Callable[[list[int]], list[str]],
    name: str,
    unit: str,
) -> dict[int, str]:
    """What is written for each text that is short enough for a model, by its place.

    Args:
        texts: Any number; one warning names those that are too long.
        rows: Token ids of each.
        limit: Tokens that the model takes.
        batch_tokens: Token budget of one batch.
        forward: Takes places of `texts`, returns what is written for each.
        name: Of the model, for the progress bar.
        unit: What the texts are, for the progress bar.
    """
    fitting = _readable(texts, rows, limit)
    written = run_batched(
        [len(rows[i]) for i in fitting],
        batch_tokens,
        lambda batch: forward([fitting[k] for k in batch]),
        f"{name}: {len(fitting)} {unit}",
    )
    return dict(zip(fitting, written, strict=True))


def write_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    rows: Sequence[Ids],
    limit: int,
    batch_tokens: int,
    config: GenerationConfig,
    name: str,
) -> dict[int, str]:
    """What an encoder-decoder writes for each text that it can read, by the text's place.

    No answer is longer than twice the longest text of its batch.

    Args:
        model: An encoder-decoder.
        tokenizer: Its own.
        texts: Any number; one warning names those that are too long.
        rows: Token ids of each, as the model reads it.
        limit: Tokens that it reads or writes at the most.
        batch_tokens: Token budget of one batch.
        config: Of `sampled` or `searched`.
        name: Of the model, for the progress bar.
    """

    def forward(places: list[int]) -> list[str]:
        chosen = [rows[i] for i in places]
        longest = min(limit, 2 * max(len(row) for row in chosen))
        return write(model, tokenizer, chosen, config, longest)

    return write_readable(texts, rows, limit, batch_tokens, forward, name, "texts")


def _readable(texts: Sequence[str], rows: Sequence[Ids], limit: int) -> list[int]:
    """Places of the texts that are short enough; one warning names the others."""
    long = [i for i, row in enumerate(rows) if len(row) > limit]
    if long:
        others = f" (and {len(long) - 1} more)" if len(long) > 1 else ""
        log.warning(
            "%s has %d tokens, more than the %d that the model can take: it is passed over%s",
            *(shortened(texts[long[0]]), len(rows[long[0]]), limit, others),
        )
    return [i for i, row in enumerate(rows) if len(row) <= limit]


def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Ids],
    config: GenerationConfig,
    max_new_tokens: int,
) -> list[str]:
    """What the model writes behind (decoder-only) or for (encoder-decoder) each row of token ids.

    Special tokens are left out, but for the sentinels that part the fillings of a T5. A text in
    which the model wrote a mask or an unknown token has a hole there, and becomes "".
    """
    pad = tokenizer.pad_token_id or 0
    ids, mask = pad_rows(rows, pad, model.device)
    if not model.config.is_encoder_decoder:  # what is continued has to end the row
        width = ids.shape[1]
        shifts = torch.tensor([width - len(row) for row in rows], device=model.device)
        places = (torch.arange(width, device=model.device) - shifts[:, None]) % width
        ids, mask = ids.gather(1, places), mask.gather(1, places)
    config = copy.deepcopy(config)
    config.update(max_new_tokens=max_new_tokens, pad_token_id=pad)
    written = model.generate(  # type: ignore[operator]  # the type says Tensor | Module
        input_ids=ids, attention_mask=mask, generation_config=config
    )
    special = {
        place
        for place, token in tokenizer.added_tokens_decoder.items()
        if token.special and not token.content.startswith("<extra_id_")
    }
    if model.config.is_encoder_decoder:
        return [_text(tokenizer, (), row, special) for row in written.tolist()]
    new = written[:, ids.shape[1] :].tolist()
    return [_text(tokenizer, row, more, special) for row, more in zip(rows, new, strict=True)]


def _text(
    tokenizer: PreTrainedTokenizerBase, before: Ids, new: Sequence[int], special: Collection[int]
) -> str:
    """The text of the new tokens, without special ones.

    They are decoded behind those before them: alone, some tokenizers leave out their first space.
    """
    ends = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    if ({tokenizer.mask_token_id, tokenizer.unk_token_id} - ends).intersection(new):
        return ""

    def decoded(ids: Iterable[int]) -> str:
        return str(tokenizer.decode([i for i in ids if i not in special]))

    return decoded([*before, *new])[len(decoded(before)) :]
