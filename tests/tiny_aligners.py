"""Tiny models of CTC, built alike wherever they are built.

Their weights are of NumPy's `RandomState`, whose stream is frozen, in the order of their names, so
that a published implementation can print its numbers for them in another environment.
"""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

SENTENCES = [
    "the soup was cold and nobody said sorry .",
    "we loved the view , but the room was small !",
    "our guide knew every stone of the old town .",
    "the bus came late again , so we walked home .",
    "her second novel is better than the first .",
    "a quiet place with good coffee and kind people .",
    "they never answered the phone all day .",
    "the garden smelled of rain and cut grass .",
]

_WORDS = """
    the and was we to a of is with they in an hour left cold warm rude kind soup waiter best worst
    hotel town dogs garden cello music pool council old new sea farm school roof leak park smoke
    room tree happy hungry lugg never said
""".split()
_ALPHABET = string.ascii_lowercase + string.digits + string.punctuation
_SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
}


def wordpiece() -> Tokenizer:
    """WordPiece of BERT over some words and all characters of ASCII."""
    pieces = [*_WORDS, *_ALPHABET, *(f"##{c}" for c in _ALPHABET), "##s", "##ed", "##ing", "##age"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*special, *pieces]))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def byte_pairs() -> Tokenizer:
    """Byte-level BPE of RoBERTa, with some words joined."""
    merges: list[tuple[str, str]] = []
    for word in [*_WORDS, *("Ġ" + word for word in _WORDS)]:
        letters = list(word)
        while len(letters) > 1:
            merges.append((letters[0], letters[1]))
            letters[:2] = ["".join(letters[:2])]
    merges = list(dict.fromkeys(merges))
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = dict.fromkeys([*special, *bytes_, *("".join(merge) for merge in merges)])
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]), add_prefix_space=False
    )
    return tokenizer


def random_weights(model: torch.nn.Module, seed: int) -> None:
    """Fill all weights; scales of layer norms lie around 1."""
    draw = np.random.RandomState(seed)
    for name, weight in sorted(model.named_parameters()):
        values = torch.tensor(draw.normal(0.0, 0.3, tuple(weight.shape)), dtype=torch.float32)
        scale = "LayerNorm.weight" in name
        weight.data.copy_(values + 1.0 if scale else values)


def save_tokenizer(folder: Path, family: str) -> None:
    """Save the tokenizer of `"bert"` or `"roberta"`."""
    kinds = ("bos", "eos", "cls", "sep", "pad", "unk")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if family == "bert":
        tokenizer, names = wordpiece(), {kind: f"[{kind.upper()}]" for kind in kinds[2:]}
    else:
        tokens = ("<s>", "</s>", "<s>", "</s>", "<pad>", "<unk>")
        tokenizer, names = byte_pairs(), dict(zip(kinds, tokens, strict=True))
        inputs.remove("token_type_ids")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        model_input_names=inputs,
        **{f"{kind}_token": token for kind, token in names.items()},
    )
    fast.save_pretrained(folder)


def bert(seed: int = 0) -> BertModel:
    """BERT of four layers, with a pooler."""
    size = wordpiece().get_vocab_size()
    model = BertModel(BertConfig(vocab_size=size, max_position_embeddings=512, **_SHAPE)).eval()
    random_weights(model, seed)
    return model


def roberta(seed: int = 0) -> RobertaModel:
    """RoBERTa of four layers, with a pooler."""
    config = RobertaConfig(
        vocab_size=byte_pairs().get_vocab_size(),
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **_SHAPE,
    )
    model = RobertaModel(config).eval()
    random_weights(model, seed)
    return model


def head(outputs: int, seed: int) -> torch.nn.Linear:
    """Linear layer over the features."""
    layer = torch.nn.Linear(_SHAPE["hidden_size"], outputs)
    random_weights(layer, seed)
    layer.weight.data *= 0.2  # so that probabilities differ
    return layer
