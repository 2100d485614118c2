"""Requests of the trainer's own code: OpenRLHF from its wheel.

OpenRLHF's experience is made from the replies by its own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from trainer_clients import OPENRLHF, Importer

from ctrlreward import Reward, Samples
from ctrlreward.serving.get_reward import GetReward

EOS = "<eos>"
PROMPT = "cd"
TEXTS = ["ab", "f", "aab", "b"]
OPTIONS = GetReward(-9.0, columns={"prefixes": "prompt"}, end_tokens=(EOS,))


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
        return SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=ids, finish_reason="stop", logprobs=None)]
        )


@pytest.fixture
def importer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Importer]]:
    made: list[Importer] = []

    def make(client: Any) -> Importer:
        made.append(Importer(client, monkeypatch))
        return made[-1]

    yield make
    for one in made:
        one.forget()


@pytest.fixture
def openrlhf(importer: Callable[[Any], Importer]) -> Importer:
    found = importer(OPENRLHF)
    found.absent("ray", "vllm", "openrlhf.trainer.ray", "openrlhf.trainer.ray.vllm_engine")
    found.absent("openrlhf.trainer.ray.launcher", "flash_attn", "flash_attn.bert_padding")
    found.absent("flash_attn.utils", "flash_attn.utils.distributed", "deepspeed")
    return found


def totals_of(reward: Reward) -> list[float]:
    batch = reward(Samples([PROMPT + text for text in TEXTS]))
    assert batch.failed.tolist() == [False, True, False, False]
    return np.where(batch.failed, -9.0, batch.total).tolist()


def test_openrlhf_makes_its_experience(serve, reward, openrlhf) -> None:
    agent = openrlhf.module("utils.agent")
    executor = agent.SingleTurnAgentExecutor(f"{serve(reward, OPTIONS).url}/get_reward")
    params = SimpleNamespace(max_tokens=8, logprobs=None)

    async def roll_out() -> list[Any]:
        return await asyncio.gather(
            *(executor.execute(PROMPT, None, params, 99, Tokenizer(), Engine(t)) for t in TEXTS)
        )

    generator = openrlhf.module("trainer.ppo_utils.samples_generator").SamplesGenerator
    made = [
        generator._process_response_into_experience(None, response, max_len=99)
        for response in asyncio.run(roll_out())
    ]
    expected = pytest.approx(totals_of(reward), abs=1e-6)
    assert torch.cat([one.rewards for one in made]).flatten().tolist() == expected
    assert [one.scores[0].item() for one in made] == expected  # its dynamic filter reads this
    for one in made:
        assert one.rewards.numel() == 1
        assert one.rewards.dtype == torch.float32
        assert set(one.info) >= {"reward", "score", "share", "length", "failed"}
    # Its batches take no missing key and no wrong length.
    experience = openrlhf.module("trainer.ppo_utils.experience")
    joined = experience.Experience.concat_experiences(made, 0)
    again = experience.make_experience_batch(experience.split_experience_batch(joined))
    assert again.rewards.flatten().tolist() == expected
    logged = {name: torch.tensor(values, dtype=torch.float) for name, values in again.info.items()}
    assert logged["failed"].flatten().tolist() == [0.0, 1.0, 0.0, 0.0]
    assert all(values.isfinite().all() for values in logged.values())
