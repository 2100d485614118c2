"""Tiny BERTs with a token per word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerFast

WORDS = "good bad food the was staff friendly not and slow".split()
OF_BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def word_tokenizer(
    words: Sequence[str] = WORDS, special: Mapping[str, str] = OF_BERT
) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per word, special ones first, that reads 16 tokens."""
    vocabulary = {word: i for i, word in enumerate([*special.values(), *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    inputs = ["input_ids", "attention_mask"]
    if special is OF_BERT:
        inputs.insert(1, "token_type_ids")
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=16, model_input_names=inputs, **special
    )


def word_config(labels: Mapping[int, str]) -> BertConfig:
    return BertConfig(
        vocab_size=len(OF_BERT) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=1.0,  # so that texts and tokens differ in their values
        id2label=dict(labels),
        label2id={label: place for place, label in labels.items()},
    )


def save_word_bert(folder: Path, head: type[PreTrainedModel], labels: Mapping[int, str]) -> str:
    """Save a seeded BERT with a head and its tokenizer; return the folder."""
    torch.manual_seed(0)
    head(word_config(labels)).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)
