"""Greedy transfer of sentences in batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from ctrlreward.recipes.papers.textual_transfer.networks import TransferNetworks, without_dropout
from ctrlreward.recipes.papers.textual_transfer.vocabulary import PAD, UNK


@torch.no_grad()
def transferred(
    networks: TransferNetworks,
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[str],
    targets: Sequence[int],
    max_words: int,
    batch_size: int = 256,
) -> list[str]:
    """Return the sentences in the target styles, each word the likeliest after those before it.

    Args:
        networks: Encoder and generator.
        tokenizer: Their vocabulary.
        sentences: n sentences of the other styles.
        targets: Style to write in, 0 or 1, n of them.
        max_words: Most words of a result.
        batch_size: Sentences per forward pass; those of a pass are about equally long.
    """
    device = networks.embedding.weight.device
    encoded = tokenizer(list(sentences)).input_ids if sentences else []
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    texts = [""] * len(encoded)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        lengths = torch.tensor([len(encoded[i]) for i in rows], device=device)
        styles = torch.tensor([targets[i] for i in rows], device=device)
        words = [torch.tensor(encoded[i] or [UNK], device=device) for i in rows]
        with without_dropout(networks):
            padded = pad_sequence(words, batch_first=True, padding_value=PAD)
            content = networks.encode(padded, lengths, 1 - styles)
            ids, counts = networks.write(styles, content, max_words)
        for i, row, count in zip(rows, ids.tolist(), counts.tolist(), strict=True):
            texts[i] = str(tokenizer.decode(row[:count], clean_up_tokenization_spaces=False))
    return texts
