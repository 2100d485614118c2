"""Writing text: generation in batches, of which the callers decide what is read and kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.models.texts import Ids, pad_rows


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


def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Ids],
    config: GenerationConfig,
    max_new_tokens: int,
) -> list[str]:
    """What the model writes behind (decoder-only) or for (encoder-decoder) each row of token ids.

    Special tokens are left out, but those that part the fillings of a T5.
    """
    pad = tokenizer.pad_token_id or 0
    ids, mask = pad_rows(rows, pad, model.device)
    if not model.config.is_encoder_decoder:  # what is continued has to end the row
        width = ids.shape[1]
        shifts = torch.tensor([width - len(row) for row in rows], device=model.device)
        places = (torch.arange(width, device=model.device) - shifts[:, None]) % width
        ids, mask = ids.gather(1, places), mask.gather(1, places)
    written = model.generate(  # type: ignore[operator]  # the type says Tensor | Module
        input_ids=ids,
        attention_mask=mask,
        generation_config=config,
        max_new_tokens=max_new_tokens,
        pad_token_id=pad,
    )
    new = written if model.config.is_encoder_decoder else written[:, ids.shape[1] :]
    named = (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token)
    texts: list[str] = tokenizer.batch_decode(new)
    for token in filter(None, named):
        texts = [text.replace(token, "") for text in texts]
    return texts
