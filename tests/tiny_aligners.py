"""Tiny models of CTC, built alike wherever they are built.

Their weights are of NumPy's `RandomState`, whose stream is frozen, in the order of their names, so
that a published implementation can print its numbers for them in another environment.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

TOKENIZERS = Path(__file__).parent / "golden" / "ctc-tokenizers"
_SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
}


def save_tokenizer(folder: Path, family: str) -> None:
    """Save the tokenizer of `"bert"` or `"roberta"`."""
    shutil.copytree(TOKENIZERS / family, folder, dirs_exist_ok=True)


def vocabulary(family: str) -> int:
    """Return the number of tokens."""
    tokenizer: dict[str, Any] = json.loads((TOKENIZERS / family / "tokenizer.json").read_text())
    return len(tokenizer["model"]["vocab"])


def random_weights(model: torch.nn.Module, seed: int) -> None:
    """Fill all weights; scales of layer norms lie around 1."""
    draw = np.random.RandomState(seed)
    for name, weight in sorted(model.named_parameters()):
        values = torch.tensor(draw.normal(0.0, 0.3, tuple(weight.shape)), dtype=torch.float32)
        scale = "LayerNorm.weight" in name
        weight.data.copy_(values + 1.0 if scale else values)


def bert(seed: int = 0) -> BertModel:
    """BERT of four layers, with a pooler."""
    size = vocabulary("bert")
    model = BertModel(BertConfig(vocab_size=size, max_position_embeddings=512, **_SHAPE)).eval()
    random_weights(model, seed)
    return model


def roberta(seed: int = 0) -> RobertaModel:
    """RoBERTa of four layers, with a pooler."""
    config = RobertaConfig(
        vocab_size=vocabulary("roberta"),
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
