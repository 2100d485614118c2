"""Models of published sizes with random weights, made from configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AddedToken,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
)

Options = dict[str, Any]

# Family and sizes. The first four are those of SmolLM2-135M, MiniLM-L6, PEGASUS-large and a policy
# of 1.5 billion weights (Qwen2.5); MiniLM-L6 also has the heads. The others are small.
# fmt: off
_ENCODER: Options = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
                     "num_attention_heads": 12, "vocab_size": 30522}
_DECODER: Options = {"max_position_embeddings": 8192, "tie_word_embeddings": True}
SHAPES: dict[str, tuple[str, Options]] = {
    "llama": ("llama", _DECODER | {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}),
    "encoder": ("bert", _ENCODER),
    "pegasus": ("pegasus", {
        "d_model": 1024, "encoder_layers": 16, "decoder_layers": 16, "encoder_attention_heads": 16,
        "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
        "vocab_size": 96103, "max_position_embeddings": 1024}),
    "policy": ("qwen2", _DECODER | {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936}),
    "classifier": ("bert", _ENCODER | {"id2label": {0: "negative", 1: "positive"}}),
    "aligner": ("bert", _ENCODER | {"id2label": {0: "aligned", 1: "hallucinated"}}),
    "regression": ("bert", _ENCODER | {"num_labels": 1}),
    "reward": ("llama", _DECODER | {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
        "num_attention_heads": 8, "vocab_size": 49152, "num_labels": 1}),
    "bart": ("bart", {
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
        "vocab_size": 50265}),
    "t5": ("t5", {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
                  "vocab_size": 32128}),
    "bloom": ("bloom", {"hidden_size": 512, "n_layer": 6, "n_head": 8, "vocab_size": 49152}),
    "mamba": ("mamba", {"hidden_size": 128, "num_hidden_layers": 4, "vocab_size": 49152}),
}
# Sizes in tiny models.
TINY = {name: 2 if "layer" in name or "head" in name else 48
        for _, shape in SHAPES.values() for name in shape} | {
    "hidden_size": 32, "d_model": 32, "d_kv": 16, "vocab_size": 1200,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
    "id2label": None, "num_labels": None}
HEADS = {
    "encoder": AutoModel, "pegasus": AutoModelForSeq2SeqLM, "bart": AutoModelForSeq2SeqLM,
    "t5": AutoModelForSeq2SeqLM, "classifier": AutoModelForSequenceClassification,
    "aligner": AutoModelForTokenClassification, "regression": AutoModelForSequenceClassification,
    "reward": AutoModelForSequenceClassification}
# Special tokens of a family in the order of their ids, and what they are for.
SPECIAL: dict[str, dict[str, str]] = {
    "bert": {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"},
    "pegasus": {"pad": "<pad>", "eos": "</s>", "blank": "<mask_1>", "mask": "<mask_2>",
                "unk": "<unk>"},
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "blank": "<extra_id_0>"},
    "bart": {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}}
_CAUSAL = {"eos": "<|endoftext|>"}
# fmt: on


class Folders(Mapping[str, str]):
    """Folders of models by name, each made at its first use unless `carried` has it.

    `tiny` models have the same families; `device` makes the weights of the policy.
    """

    def __init__(
        self, place: Path, carried: Path | None = None, tiny: bool = False, device: str = "cpu"
    ) -> None:
        self.place, self.carried, self.tiny, self.device = place, carried, tiny, device

    def __iter__(self) -> Iterator[str]:
        return iter(SHAPES)

    def __len__(self) -> int:
        return len(SHAPES)

    def __getitem__(self, name: str) -> str:
        if self.carried is not None and (self.carried / name).is_dir():
            return str(self.carried / name)
        folder = self.place / name
        if not folder.exists():
            torch.manual_seed(0)
            self._make(name, folder)
        return str(folder)

    def _make(self, name: str, folder: Path) -> None:
        family, shape = SHAPES[name]
        if self.tiny:
            shape = {key: TINY.get(key) or value for key, value in shape.items()}
        known = [*SPECIAL.get(family, _CAUSAL)]
        options: Options = {
            f"{kind}_token_id": known.index(kind) for kind in known if kind in ("pad", "bos", "eos")
        }
        if family in SPECIAL and family != "bert":
            options["decoder_start_token_id"] = 2 if family == "bart" else 0
        # Larger than by default: else all tokens have nearly the same probability.
        spread = (shape.get("hidden_size") or shape["d_model"]) ** -0.5
        options |= {"initializer_range": spread, "init_std": spread}
        # A card makes weights in a second that take the CPU a minute.
        large = name == "policy" and self.device.startswith("cuda")
        with torch.device(self.device if large else "cpu"):
            config = AutoConfig.for_model(family, **shape, **options)
            model = HEADS.get(name, AutoModelForCausalLM).from_config(
                config, dtype=torch.bfloat16 if large else torch.float32
            )
        model.save_pretrained(folder)
        save_tokenizer(folder, family, shape["vocab_size"])


def save_tokenizer(folder: Path, family: str, size: int) -> None:
    """Save a byte-level BPE whose words of up to four letters are one token each, `size` in all."""
    special = SPECIAL.get(family, _CAUSAL)
    pieces = dict.fromkeys([*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())])
    merges: list[tuple[str, str]] = []
    for word in (w for length in range(1, 5) for w in product(ascii_lowercase, repeat=length)):
        if len(pieces) == size:
            break
        stem = "Ġ" + "".join(word[:-1])
        merges.append((stem, word[-1]))
        pieces[stem + word[-1]] = None
    words = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    if family == "bert":
        words.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    elif family == "bart":
        words.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    elif family in SPECIAL:
        words.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", 1)]
        )
    words.add_special_tokens([AddedToken(token, special=True) for token in special.values()])
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=512,
        **{f"{kind}_token": token for kind, token in special.items() if kind != "blank"},
    ).save_pretrained(folder)
