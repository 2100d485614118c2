"""Models of transformers alone: one plain forward pass per question, full logits."""

from __future__ import annotations

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from ctrlreward.models.tasks import Blank


class PlainCausal:
    """Decoder-only model: one pass per continuation."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def tokens(self, context: str, target: str) -> tuple[list[int], int]:
        """Token ids behind the start token, and how many of them lie in the context alone."""
        ids = self.tokenizer(context + target, add_special_tokens=False).input_ids
        decoded = [self.tokenizer.decode(ids[: n + 1]) for n in range(len(ids))]
        return ids, sum(len(text) <= len(context) for text in decoded)

    def log_probs(self, ids: list[int], first: int) -> np.ndarray:
        """Log-probability of each token from place `first` on."""
        if first == len(ids):
            return np.zeros(0)
        with torch.inference_mode():
            table = self.model(torch.tensor([ids])).logits[0].double().log_softmax(dim=-1)
        return np.array([table[n - 1, ids[n]].item() for n in range(first, len(ids))])


class PlainSeq2Seq:
    """Encoder-decoder of a family: one pass per pattern and target."""

    def __init__(self, family: str, folder: str) -> None:
        self.family = family
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def passes(self, asked: Blank, target: str) -> tuple[list[int], list[int], int]:
        """Encoder and decoder tokens, and the first place of the decoder's that is scored."""
        mask = {"pegasus": "<mask_1>", "t5": "<extra_id_0>", "bart": "<mask>"}[self.family]
        source = self.tokenizer("".join((*asked.left, mask, *asked.right))).input_ids
        if self.family == "pegasus":  # <pad> target </s>
            return source, [0, *self.ids(target), *([1] if asked.ends else [])], 1
        if self.family == "t5":  # <pad> <extra_id_0> target
            return source, [0, len(self.tokenizer) - 1, *self.ids(target)], 2
        left = "".join(asked.left).strip()  # </s> <s> left target
        given = [2, 0, *self.ids(left)]
        spaced = f" {target.strip()}" if left and not asked.joined else target
        return source, given + self.ids(spaced), len(given)

    def log_probs(self, source: list[int], decoder: list[int], first: int) -> np.ndarray:
        """Log-probability of each decoder token from place `first` on."""
        with torch.inference_mode():
            logits = self.model(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([decoder[:-1]])
            ).logits[0]  # the last token is only predicted
        table = logits.double().log_softmax(dim=-1)
        return np.array([table[n - 1, decoder[n]].item() for n in range(first, len(decoder))])
