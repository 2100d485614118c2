"""Models that are cut off, damaged or do not fit: the error names the model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ctrlreward import Perplexity
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


@pytest.mark.parametrize("how", ["half", "empty", "junk", "gone"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_not_whole_names_the_model(model: Path, name: str, how: str) -> None:
    if how == "gone":
        (model / name).unlink()
    else:
        spoil(model / name, how)
    with pytest.raises((OSError, ValueError), match=f"model = '{model}'"):
        score(model)


def test_a_tokenizer_larger_than_the_vocabulary(
    model: Path, tiny_llama: Callable[[str], str]
) -> None:
    """It raised `index out of range in self` at the first text with such a token."""
    for file in Path(tiny_llama(LETTERS + "0123")).glob("tokenizer*"):
        shutil.copy(file, model)
    with pytest.raises(ValueError, match="model"):
        score(model)
    with pytest.raises(ValueError, match="model"):
        PolicyTuner(str(model), len).configure_model()


def test_a_padding_token_that_is_not_embedded(model: Path) -> None:
    """Common in chat models, and read by a policy alone."""
    expected = score(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(model)
    assert score(model) == expected
    with pytest.raises(ValueError, match=r"'\[PAD\]'"):
        PolicyTuner(str(model), len).configure_model()
