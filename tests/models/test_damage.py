"""Models that are cut off, damaged or do not fit: the error names the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward import Perplexity
from ctrlreward.models.cache import cache_folder
from ctrlreward.models.gguf import convert_once
from ctrlreward.models.loading import load_frozen, load_tokenizer
from ctrlreward.policy import PolicyTuner

LETTERS = "abcdefghijklmnopqrstuvwxyz ."


@pytest.fixture
def model(tiny_llama: Callable[[str], str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama(LETTERS), tmp_path / "model"))


def score(model: Path) -> float:
    return float(Perplexity(str(model)).score(["good soup."])["perplexity"][0])


def spoil(file: Path, how: str) -> None:
    content = file.read_bytes()
    half, deep = content[: len(content) // 2], b"[" * 100_000
    file.write_bytes({"half": half, "empty": b"", "junk": b"\xff\0", "deep": deep}[how])


@pytest.mark.parametrize("how", ["half", "empty", "junk"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_not_whole_names_the_model(model: Path, name: str, how: str) -> None:
    spoil(model / name, how)
    with pytest.raises((OSError, ValueError), match=f"model = '{model}'"):
        score(model)


def test_a_folder_without_a_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="tokenizer"):
        score(model)


def test_a_tokenizer_larger_than_the_vocabulary(
    model: Path, tiny_llama: Callable[[str], str]
) -> None:
    """It raised `index out of range in self` at the first text with such a token."""
    for file in Path(tiny_llama(LETTERS + "0123")).glob("tokenizer*"):
        shutil.copy(file, model)
    message = "embeds 30 tokens, but its tokenizer has 4 more"
    with pytest.raises(ValueError, match=message):
        score(model)
    with pytest.raises(ValueError, match=message):
        PolicyTuner(str(model), len).configure_model()


def test_a_padding_token_that_is_not_embedded(model: Path) -> None:
    """Common in chat models, and read by a policy alone."""
    expected = score(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(model)
    assert score(model) == expected
    with pytest.raises(ValueError, match=r"1 more, such as '\[PAD\]'"):
        PolicyTuner(str(model), len).configure_model()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no GGUF" * 9])
def test_a_gguf_file_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises((OSError, ValueError), match="model"):
        convert_once(file)
    assert not [path for path in cache_folder().iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"dtype": "float17"}, "float17"),
    ],
)
def test_a_configuration_of_no_model(model: Path, value: dict[str, object], reason: str) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | value))
    with pytest.raises(ValueError, match=f"model = '{model}'.*{reason}"):
        score(model)


def test_a_tokenizer_with_a_catastrophic_expression(model: Path) -> None:
    """Its library panics, by what is not an Exception."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["pattern"] = {"Regex": "(a+)+$"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(RuntimeError, match=r"a tokenizer .* scoring Perplexity .*: .*retry-limit"):
        Perplexity(str(model)).score(["a" * 40 + "b"])


def test_a_whole_file_with_other_content_keeps_its_error(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "no such type"}))
    with pytest.raises(ValueError, match="no such type"):
        load_frozen(AutoModelForCausalLM, str(model))
    assert np.array_equal(load_tokenizer(str(model))("ab")["input_ids"], [2, 3])
