"""Writing text: generation in batches, of which the callers decide what is read and kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.models.texts import Ids, pad_rows
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


def readable(texts: Sequence[str], rows: Sequence[Ids], limit: int) -> list[int]:
    """Which texts are short enough for a model; one warning names the others.

    Args:
        texts: Any number.
        rows: Token ids of each.
        limit: Tokens that the model takes.
    """
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
    if model.config.is_encoder_decoder:
        return [_text(tokenizer, (), row) for row in written.tolist()]
    new = written[:, ids.shape[1] :].tolist()
    return [_text(tokenizer, row, more) for row, more in zip(rows, new, strict=True)]


def _text(tokenizer: PreTrainedTokenizerBase, before: Ids, new: Sequence[int]) -> str:
    """The text of the new tokens.

    They are decoded behind those before them: alone, some tokenizers leave out their first space.
    """
    ends = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    if ({tokenizer.mask_token_id, tokenizer.unk_token_id} - ends).intersection(new):
        return ""
    special = {
        place
        for place, token in tokenizer.added_tokens_decoder.items()
        if token.special and not token.content.startswith("<extra_id_")
    }

    def decoded(ids: Iterable[int]) -> str:
        return str(tokenizer.decode([i for i in ids if i not in special]))

    return decoded([*before, *new])[len(decoded(before)) :]
