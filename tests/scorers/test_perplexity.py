from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np
import pytest
import torch
from plain_models import PlainCausal
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ctrlreward.samples import Samples
from ctrlreward.scorers.perplexity import Perplexity

TEXTS = ["the food was good", "bad", "the staff was kind and the food was slow", "good good good"]


@pytest.fixture(scope="module")
def folder(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(ascii_lowercase + " ")


def log_probs_one_by_one(folder: str, texts: list[str]) -> list[np.ndarray]:
    """Log-probabilities of each text's tokens with transformers alone."""
    plain = PlainCausal(folder)
    return [plain.log_probs([0, *plain.tokens("", text)[0]], 1) for text in texts]


@pytest.mark.parametrize("batch_tokens", [1, 8192])
def test_equals_one_text_at_a_time(folder: str, batch_tokens: int) -> None:
    scores = Perplexity(folder, batch_tokens=batch_tokens).score(Samples(TEXTS))
    expected = np.array([values.mean() for values in log_probs_one_by_one(folder, TEXTS)])
    np.testing.assert_allclose(scores["log_likelihood"], expected, atol=1e-5)
    np.testing.assert_allclose(scores["perplexity"], np.exp(-expected), rtol=1e-5)
    assert expected.std() > 0.1  # the texts differ in likelihood


def test_the_end_of_a_text_can_count(folder: str) -> None:
    ended = log_probs_one_by_one(folder, [f"{text}<|endoftext|>" for text in TEXTS])
    assert [len(values) for values in ended] == [len(text) + 1 for text in TEXTS]
    scorer = Perplexity(folder, score_end=True)
    scores = scorer.score(Samples(TEXTS))["log_likelihood"]
    np.testing.assert_allclose(scores, [values.mean() for values in ended], atol=1e-5)
    tokens = np.concatenate(ended)
    assert scorer.corpus(TEXTS)["perplexity"] == pytest.approx(math.exp(-tokens.mean()), rel=1e-5)
    assert math.isnan(scorer.score([""])["perplexity"][0])
    begin = "the staff was"  # a truncated text has no end
    cut = Perplexity(folder, score_end=True, max_tokens=len(begin))
    (begun,) = log_probs_one_by_one(folder, [begin])
    assert cut.score(TEXTS[2:3])["log_likelihood"][0] == pytest.approx(begun.mean(), abs=1e-5)


def test_corpus_perplexity_weighs_texts_by_their_tokens(folder: str) -> None:
    tokens = np.concatenate(log_probs_one_by_one(folder, TEXTS))
    value = Perplexity(folder).corpus(Samples([*TEXTS, ""]))["perplexity"]
    assert value == pytest.approx(math.exp(-tokens.mean()), rel=1e-5)
    assert math.isnan(Perplexity(folder).corpus(Samples([""]))["perplexity"])


# The start of a document


class Family(NamedTuple):
    """How a family of models configures its tokenizer; `start` begins a document.

    `puts` is what the tokenizer itself puts before a text.
    """

    start: str
    special: dict[str, str]
    puts: str = ""
    template: str = ""
    sentencepiece: bool = False


_END = "<|endoftext|>"
_CHATML = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
_TURNS = "{{ bos_token }}{% for m in messages %}{{ '<|user|>' + m['content'] }}{% endfor %}"
FAMILIES = {
    "GPT-2": Family(_END, {"bos_token": _END, "eos_token": _END, "unk_token": _END}),
    "SmolLM2-Instruct": Family(
        _END,
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": _END},
        template=_CHATML,
    ),
    "Qwen": Family(_END, {"eos_token": "<|im_end|>", "pad_token": _END}, template=_CHATML),
    "Llama-3": Family(
        "<|begin_of_text|>",
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
        puts="<|begin_of_text|>",
        template=_TURNS,
    ),
    "Phi-3": Family(
        "<s>",
        {"bos_token": "<s>", "eos_token": _END, "unk_token": "<unk>"},
        template=_TURNS,
        sentencepiece=True,
    ),
    "Phi-3, first release": Family(
        "<s>",
        {"bos_token": "<s>", "eos_token": _END, "unk_token": "<unk>"},
        puts="<s>",
        sentencepiece=True,
    ),
    "Gemma": Family(
        "<bos>",
        {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"},
        puts="<bos>",
        template=_TURNS,
        sentencepiece=True,
    ),
}
READ = ["The soup was hot, and the bread was fresh.", "naïve café ☕", "  two\n\nlines", "好吃!"]


def save_family(family: Family, folder: Path) -> str:
    """Save a seeded model with a small tokenizer of the family."""
    special = [*dict.fromkeys(family.special.values())]
    model = models.BPE(byte_fallback=family.sentencepiece)
    tokenizer = Tokenizer(model)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if family.sentencepiece:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f"{text}, and fresh" for text in TEXTS], trainer)
    if family.puts:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{family.puts} $A",
            special_tokens=[(family.puts, tokenizer.token_to_id(family.puts))],
        )
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **family.special)
    saved.chat_template = family.template or None
    saved.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(saved),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.7,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def nats_alone(folder: str, start: str, text: str) -> float:
    """Cross entropy of a text, with transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids: list[int] = tokenizer(text).input_ids
    begin = tokenizer.convert_tokens_to_ids(start)
    ids = ids if ids[0] == begin else [begin, *ids]
    assert ids.count(begin) == 1
    with torch.inference_mode():
        loss = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss
    return loss.item()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_document_begins_as_the_tokenizer_has_it(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = save_family(family, tmp_path)
    nats = np.array([nats_alone(folder, family.start, text) for text in READ])
    scorer = Perplexity(folder)
    scores = scorer.score(READ)
    np.testing.assert_allclose(scores["log_likelihood"], -nats, rtol=1e-5)
    np.testing.assert_allclose(scores["perplexity"], np.exp(nats), rtol=1e-4)
