"""What all tests share: an offline, quiet setting and the folders of real data."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch, transformers and wandb are imported: they read these once. Subprocesses that a
# test starts inherit them.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"

# These two carry Lightning's greetings; it sets no level of its own on them.
for name in ("pytorch_lightning", "lightning_fabric"):
    logging.getLogger(f"{name}.utilities.rank_zero").setLevel(logging.WARNING)

# How long an example takes says something of the machine, not of the code.
settings.register_profile("ctrlreward", deadline=None)
settings.load_profile("ctrlreward")

# Tiny models of seeded random weights, for tests of several rooms.
pytest_plugins = ["tiny_models"]

ROOT = Path(__file__).resolve().parent.parent


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    reason = f"no real data at {path}: set CTRLREWARD_DATA to its folder"
    if os.environ.get("CTRLREWARD_REQUIRE_DATA") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _data_path() -> Path:
    return Path(os.environ.get("CTRLREWARD_DATA", ROOT.parent / "shared" / "data")).resolve()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data, described by the README.md in it."""
    return _folder(_data_path())


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder of recorded outputs of published implementations, beside the data."""
    return _folder(_data_path().with_name("golden"))


@pytest.fixture(scope="session")
def run_script() -> Callable[..., None]:
    """Runs a Python file that has to end well, in a process of its own."""

    def run(script: Path, *arguments: object, timeout: float) -> None:
        ended = subprocess.run(
            [sys.executable, str(script), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine, threads that wait for each other take longer than a tiny model."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Gives the folder of a random Llama whose tokens are the given characters.

    Token 0 ends a text and 1 ("?") stands for all other characters.
    """
    # Slow to import, and only few tests need them.
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    @cache
    def build(characters: str) -> str:
        folder = str(tmp_path_factory.mktemp("llama"))
        vocabulary = {token: i for i, token in enumerate(["<|endoftext|>", "?", *characters])}
        letters = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
        letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        letters.decoder = decoders.Fuse()
        PreTrainedTokenizerFast(
            tokenizer_object=letters, unk_token="?", eos_token="<|endoftext|>"
        ).save_pretrained(folder)
        config = LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=512,
            initializer_range=0.5,  # so that the tokens differ in probability
            bos_token_id=0,
            eos_token_id=0,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            LlamaForCausalLM(config).save_pretrained(folder)
        return folder

    return build
