"""Fixtures and settings of all tests: offline, quiet, with folders of real data."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from warm_python import run_warm, start_server

# Set before the imports of torch, transformers and wandb, which read these variables once.
# Subprocesses inherit them.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # bitsandbytes would import it: 3 s of each process
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
# Recipes read the files of data sets there.
_data = os.environ.get("CTRLREWARD_DATA", Path(__file__).parents[2] / "shared" / "data")
os.environ["CTRLREWARD_DATA"] = str(Path(_data).resolve())
# Scripts that tests start import our helpers, too.
_paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in _paths if path)

# Tests kill processes, not machines: the kernel has what a killed process wrote.
os.fsync = lambda file: None

# Loggers of Lightning's startup messages; Lightning sets no level on them itself.
for name in ("pytorch_lightning", "lightning_fabric"):
    logging.getLogger(f"{name}.utilities.rank_zero").setLevel(logging.WARNING)

# No deadline: the time of an example depends on the load of the machine.
settings.register_profile("ctrlreward", deadline=None, max_examples=30)
settings.load_profile("ctrlreward")

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures of other files; not where pytest-xdist only starts the workers.

    They import PyTorch and transformers, for which the workers would wait.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    for name in ("command_lines", "judge_server", "tiny_models"):
        config.pluginmanager.import_plugin(name)


# The longest files, which begin; the ones that wait for other processes are apart from each other.
_FIRST = [
    *("test_other_lightning.py", "test_ray.py", "test_killed_demo.py", "test_smoke.py"),
    *("test_package.py", "test_style_transfer.py", "test_killed.py", "test_blocks.py"),
    *("test_decisions.py", "test_gpu_kit.py", "test_example_own_module.py", "test_two_ranks.py"),
    *("test_language_model.py", "test_second_device_tuner.py"),
]
_PLACE = {name: place for place, name in enumerate(_FIRST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that none is left for the end."""
    items.sort(key=lambda item: _PLACE.get(item.path.name, len(_PLACE)))


def pytest_collection_finish() -> None:
    if wandb := sys.modules.get("wandb"):
        # Runs look for inputs of W&B's launch, which no test has: a second of imports.
        wandb.Run._detect_and_apply_job_inputs = lambda run: None
    # Collections leave out what lives to the end: `release` calls `gc.collect` in most tests.
    gc.collect()
    gc.freeze()
    start_server()


@pytest.fixture(autouse=True)
def distributed_environment() -> Iterator[None]:
    """Remove what libraries such as TRL leave behind: later processes would inherit it."""
    yield
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    reason = f"no real data at {path}, which this repository does not hold: set CTRLREWARD_DATA"
    if os.environ.get("CTRLREWARD_REQUIRE_DATA") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _data_path() -> Path:
    return Path(os.environ["CTRLREWARD_DATA"])


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real data, described in its README.md."""
    return _folder(_data_path())


@pytest.fixture(scope="session")
def shared_golden_dir() -> Path:
    """Folder of recorded outputs of published implementations on real data, next to the data."""
    return _folder(_data_path().with_name("golden"))


@pytest.fixture(scope="session")
def papers_dir() -> Path:
    """Folder of figures that the papers print, next to the data."""
    return _folder(_data_path().with_name("papers"))


@pytest.fixture(scope="session")
def pegasus() -> str:
    """Folder of a PEGASUS of 307 tokens with random weights, which the repository holds."""
    return str(ROOT / "tests" / "golden" / "pegasus-mini")


@pytest.fixture(scope="session")
def run_script() -> Callable[..., None]:
    """Return a function that runs a Python file in a process of its own and requires success."""

    def run(script: Path, *arguments: object, timeout: float) -> None:
        process = run_warm(script, *arguments, timeout=timeout)
        assert process.returncode == 0, process.stderr

    return run


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all tests of a module."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def run_ranks(module_folder: Path, run_script: Callable[..., None]) -> Callable[..., list[Any]]:
    """Return a function that runs a script for `module_folder`, and returns what both ranks wrote.

    It has a time limit, as a rank that waits for one that failed would wait for half an hour.
    """

    def run(script: Path, *arguments: object) -> list[Any]:
        run_script(script, module_folder, *arguments, timeout=300)
        return [json.loads((module_folder / f"rank{rank}.json").read_text()) for rank in range(2)]

    return run


@pytest.fixture
def workplace(
    small: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """A folder with docs/ and configs/, in which short names are tiny models."""
    from tiny_models import use_weights

    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    use_weights(monkeypatch, small)
    return small


@pytest.fixture(autouse=True)
def no_wandb_service() -> Iterator[None]:
    """End a test's W&B runs and their service, which subprocesses would share.

    With a run open, `wandb.init` of the next test returns that one; the run of a killed subprocess
    stays open in a shared service, and can't be resumed.
    """
    yield
    if "WANDB_SERVICE" in os.environ and (wandb := sys.modules.get("wandb")):
        wandb.finish()  # else `wandb.run` stays the torn-down run
        wandb.teardown()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine, thread synchronisation costs more than a tiny model."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that saves a random Llama whose tokens are the given characters.

    It returns the folder. Token 0 is the end token, token 1 ("?") any other character.
    """
    # Imported here because they are slow to import and few tests need them.
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    @cache
    def build(characters: str) -> str:
        folder = str(tmp_path_factory.mktemp("llama"))
        tokens = dict.fromkeys(["<|endoftext|>", "?", *characters])  # "?" may be one of them
        vocabulary = {token: i for i, token in enumerate(tokens)}
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
            initializer_range=0.5,  # large, so that token probabilities differ
            bos_token_id=0,
            eos_token_id=0,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            LlamaForCausalLM(config).save_pretrained(folder)
        return folder

    return build
