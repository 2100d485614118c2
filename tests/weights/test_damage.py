"""Models that are cut off, damaged or do not fit: the error names the file and what to do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward import Perplexity, Similarity, WordVectors
from ctrlreward.policy import LoRA, PolicyTuner
from ctrlreward.policy.model import load_policy
from ctrlreward.weights.cache import cache_folder
from ctrlreward.weights.gguf import convert_once
from ctrlreward.weights.loading import load_frozen, load_tokenizer

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


@pytest.mark.parametrize("how", ["half", "empty", "junk", "deep"])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_file_that_is_not_whole_is_named(model: Path, name: str, how: str) -> None:
    spoil(model / name, how)
    size = (model / name).stat().st_size
    message = rf"model = '{model}': {model / name} is damaged or was cut off at {size} bytes \(.+"
    with pytest.raises(OSError, match=rf"{message}\). Save it again"):
        score(model)


def test_one_of_several_files_of_weights(model: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(model)
    (model / "model.safetensors").unlink()
    loaded.save_pretrained(model, max_shard_size="20KB")
    _, second, *_ = sorted(model.glob("model-*.safetensors"))
    spoil(second, "half")
    with pytest.raises(OSError, match=rf"{second.name} is damaged or was cut off"):
        score(model)
    second.unlink()
    with pytest.raises(OSError, match=second.name):
        score(model)


def test_a_folder_without_a_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    message = rf"has no tokenizer.json. Save the tokenizer.*save_pretrained\('{model}'\)"
    with pytest.raises(ValueError, match=message):
        score(model)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite(model: Path, value: float) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 2] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    named = r"has NaN or infinite weights in model\.layers\.1\.mlp\.up_proj\.weight, because the"
    for load in (score, lambda folder: load_policy(str(folder), LoRA(), "cpu")):
        with pytest.raises(ValueError, match=named):
            load(model)


def test_a_tokenizer_larger_than_the_vocabulary(
    model: Path, tiny_llama: Callable[[str], str]
) -> None:
    """It raised `index out of range in self` at the first text with such a token."""
    for file in Path(tiny_llama(LETTERS + "0123")).glob("tokenizer*"):
        shutil.copy(file, model)
    message = rf"'{model}' embeds 30 tokens, but its tokenizer has 4 more, such as '0' \(30\). Use"
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
    with pytest.raises(ValueError, match=r"tokenizer has 1 more, such as '\[PAD\]' \(30\)"):
        PolicyTuner(str(model), len).configure_model()


@pytest.mark.parametrize("how", ["half", "empty", "junk"])
@pytest.mark.parametrize("name", ["vectors.safetensors", "words.json", "idf.json"])
def test_word_vectors(tmp_path: Path, name: str, how: str) -> None:
    WordVectors({"soup": [1, 0], "broth": [3, 4]}, idf={"soup": 2.0}).save(tmp_path / "v")
    spoil(tmp_path / "v" / name, how)
    with pytest.raises(OSError, match=rf"word vectors '.*/v': .*{name} is damaged .*Save it again"):
        Similarity(str(tmp_path / "v")).score(["soup"], sources="broth")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_an_adapter(model: Path, tmp_path: Path, name: str) -> None:
    adapter = tmp_path / "adapter"
    load_policy(str(model), LoRA(r=2), "cpu").save_pretrained(str(adapter))
    assert load_policy(str(model), LoRA(adapter=str(adapter)), "cpu")
    spoil(adapter / name, "half")
    with pytest.raises(OSError, match=rf"lora.adapter = '{adapter}': .*{name} is damaged or was"):
        load_policy(str(model), LoRA(adapter=str(adapter)), "cpu")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no GGUF" * 9])
def test_a_gguf_file_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    message = rf"model = '{file}' \({len(content)} bytes\) can't be read as GGUF.* Download it aga"
    with pytest.raises(OSError, match=message):
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
    message = rf"model = '{model}' can't be built from its config.json \(.*{reason}.*\)"
    with pytest.raises(ValueError, match=message):
        score(model)


def test_a_tokenizer_with_a_catastrophic_expression(model: Path) -> None:
    """Its library panics, by what is not an Exception."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["pattern"] = {"Regex": "(a+)+$"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(RuntimeError, match=r"a tokenizer .* scoring Perplexity .*: .*retry-limit"):
        Perplexity(str(model)).score(["a" * 40 + "b"])


def test_an_entry_of_the_cache_that_was_cut_off_may_be_deleted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(model.parent))
    spoil(model / "model.safetensors", "half")
    with pytest.raises(OSError, match=re.escape(f"Delete {model}, which is then created again")):
        load_frozen(AutoModelForCausalLM, str(model))


def test_a_whole_file_with_other_content_keeps_its_error(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "no such type"}))
    with pytest.raises(ValueError, match="no such type"):
        load_frozen(AutoModelForCausalLM, str(model))
    assert np.array_equal(load_tokenizer(str(model))("ab")["input_ids"], [2, 3])
