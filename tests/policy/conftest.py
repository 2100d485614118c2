"""Tiny policies over a few letters, and a reward on their texts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import Generation, LoRA, OptimizerConfig, PolicyTuner, pl, quiet_trainer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from tuner_records import ALGORITHMS, BATCH

from ctrlreward import Reward, Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

LETTERS = "abcdef"
GROUPS = {"generation": Generation, "optimizer": OptimizerConfig, "lora": LoRA}
_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "t5": {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    "bart": {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
    },
}
# Of each family: the padding, the end, and what the decoder starts with.
SPECIAL = {"t5": (0, 1, 0), "bart": (1, 2, 2)}

CHAT_TOKENS = ("<|endoftext|>", "<|open|>", "<|close|>")
TEMPLATE = (
    "{% for m in messages %}<|open|>{{ m.role }}\n{{ m.content }}<|close|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|open|>assistant\n{% if terse %}!{% endif %}{% endif %}"
)


class Share(Scorer):
    """Scorer of the share of a letter in the text after the prefix; NaN if that is empty."""

    def __init__(self, letter: str = "a") -> None:
        self.letter = letter
        self.scored: list[Samples] = []
        self.releases = 0

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"share": ScoreSpec(True, (0.0, 1.0)), "length": ScoreSpec(False, (0.0, np.inf))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        prefixes = samples.require("prefixes", "Share")
        rests = [t[len(p) :] for t, p in zip(samples.texts, prefixes, strict=True)]
        shares = [rest.count(self.letter) / len(rest) if rest else np.nan for rest in rests]
        lengths = [len(rest) if rest else np.nan for rest in rests]
        return {"share": np.array(shares), "length": np.array(lengths, dtype=np.float64)}

    def release(self) -> None:
        self.releases += 1


@pytest.fixture(autouse=True)
def sums_in_one_order(one_thread: None) -> None:
    """Add up with one thread, so that a run can be repeated exactly."""


@pytest.fixture
def share() -> Share:
    return Share()


@pytest.fixture
def folder(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(LETTERS)


def grouped(**options: Any) -> dict[str, Any]:
    """Collect options of the groups of `PolicyTuner` into its arguments.

    `algorithm="dapo", r=2` becomes DAPO's `baseline`, `scale` and `aggregation`, and `LoRA(r=2)`.
    """
    arguments: dict[str, Any] = ALGORITHMS[options.pop("algorithm", "grpo")].copy()
    for name, group in GROUPS.items():
        own = {field.name for field in fields(group)} & options.keys()
        arguments[name] = group(**{key: options.pop(key) for key in sorted(own)})
    return arguments | options


@pytest.fixture
def tuner(folder: str, share: Share) -> Callable[..., PolicyTuner]:
    """Return a function that builds a small `PolicyTuner` from the keywords of `grouped`."""

    def build(**changes: Any) -> PolicyTuner:
        options = {
            "model": folder,
            "reward": Reward({"share": share["share"]}),
            "num_generations": 4,
            "max_completion_length": 6,
            "r": 4,
        }
        return PolicyTuner(**grouped(**{**options, **changes}))

    return build


@pytest.fixture
def with_template(tiny_causal: Callable[..., str], tmp_path: Path) -> Callable[[str], str]:
    """Return a function that saves a Llama of 400 tokens with a chat template."""

    def build(template: str) -> str:
        folder = tmp_path / "chat"
        shutil.copytree(tiny_causal("llama", CHAT_TOKENS), folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        return str(folder)

    return build


@pytest.fixture
def chat(tuner, with_template) -> Callable[..., PolicyTuner]:
    """Return a function that builds a tuner of a model with `TEMPLATE`."""
    folder = with_template(TEMPLATE)
    return lambda **changes: tuner(model=folder, chat=True, **changes)


@pytest.fixture(scope="session")
def tiny_seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that saves a random T5 or BART with BART's generation config."""

    @cache
    def build(family: str) -> str:
        folder = str(tmp_path_factory.mktemp(family))
        opening = {"t5": ["<pad>", "</s>", "?"], "bart": ["<s>", "<pad>", "</s>", "?"]}[family]
        letters = Tokenizer(
            models.WordLevel({t: i for i, t in enumerate([*opening, *LETTERS])}, unk_token="?")
        )
        letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        letters.decoder = decoders.Fuse()
        pad, end, start = SPECIAL[family]
        letters.post_processor = processors.TemplateProcessing(
            single="$A </s>" if family == "t5" else "<s> $A </s>",
            special_tokens=[(t, i) for i, t in enumerate(opening)],
        )
        PreTrainedTokenizerFast(
            tokenizer_object=letters,
            unk_token="?",
            pad_token="<pad>",
            eos_token="</s>",
            bos_token="<s>" if family == "bart" else None,
        ).save_pretrained(folder)
        shape = {"vocab_size": letters.get_vocab_size(), "d_model": 16, **_SHAPES[family]}
        ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": start}
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(family, **shape, **ids))
        # T5 divides what reaches its output layer by the root of its width.
        generator, spread = torch.Generator().manual_seed(0), {"t5": 0.5, "bart": 0.2}[family]
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, spread, generator=generator)
        if family == "bart":
            model.final_logits_bias.normal_(0, 0.5, generator=generator)
        model.generation_config = GenerationConfig(
            **ids,
            num_beams=4,
            min_length=5,
            no_repeat_ngram_size=2,
            forced_bos_token_id=3,
            forced_eos_token_id=end,
            early_stopping=True,
        )
        model.save_pretrained(folder)
        return folder

    return build


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., pl.Trainer]:
    """Return a function that trains on a batch at each step."""

    def run(
        module: PolicyTuner, steps: int, ckpt_path: str | None = None, batch: Samples = BATCH
    ) -> pl.Trainer:
        trainer = quiet_trainer(default_root_dir=tmp_path, max_steps=steps)
        trainer.fit(module, DataLoader([batch] * 60, batch_size=None), ckpt_path=ckpt_path)
        return trainer

    return run
