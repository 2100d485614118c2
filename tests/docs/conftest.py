"""A folder to run the pages in, and the change that docs/write_your_own_scorer.md makes."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models
from tokenizers import processors
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from ctrlreward.weights import sources

ROOT = Path(__file__).resolve().parents[2]
NAME = "ctrlreward.scorers.readability"


@pytest.fixture
def changed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's diff applied to the files it touches, and the scorer importable."""
    folder = tmp_path_factory.mktemp("changed")
    page = (ROOT / "docs" / "write_your_own_scorer.md").read_text("utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```\n", page, re.DOTALL)
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "scorers.md", folder / "docs")
    subprocess.run(["git", "apply"], input=diff.encode(), cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "ctrlreward" / "scorers" / "readability.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the folder holds the diff's files only
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, NAME, module)
    return folder


def tiny_encoder(folder: Path) -> str:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = tiny_models.byte_tokenizer(special)
    words.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = dict(zip(("pad", "cls", "sep", "unk", "mask"), special, strict=True))
    PreTrainedTokenizerFast(
        tokenizer_object=words, **{f"{name}_token": token for name, token in names.items()}
    ).save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=tiny_models.VOCABULARY, num_attention_heads=2, **shape)
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def small(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama: Callable[[str], str]
) -> dict[str, str]:
    """Tiny models by the names that the pages use."""
    characters = "".join(map(chr, range(32, 127))) + "\n"
    causal, encoder = tmp_path_factory.mktemp("causal"), tmp_path_factory.mktemp("encoder")
    shutil.copytree(tiny_llama(characters), causal, dirs_exist_ok=True)
    words = AutoTokenizer.from_pretrained(causal)
    words.pad_token = words.eos_token
    words.save_pretrained(causal)
    return {"smollm2-135m": str(causal), "minilm-l6": tiny_encoder(encoder)}


@pytest.fixture
def workplace(
    small: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """A folder with docs/ and configs/, in which short names are tiny models."""
    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "_from_wheel", lambda name, wheel: small[name])
    return small
