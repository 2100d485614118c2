"""Requests of the trainers' own code: OpenRLHF, verl and verifiers from their wheels, slime's.

OpenRLHF's experience is made from the replies by its own code, up to the advantages.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from pydantic import BaseModel
from trainer_clients import OPENRLHF, VERIFIERS, VERL, Importer

from ctrlreward import Reward, Samples
from ctrlreward.serving.contract import Refusal
from ctrlreward.serving.trainer_options import TemplateMarkers, TrainerRoutes

EOS = "<eos>"
PROMPT = "cd"
TEXTS = ["ab", "f", "aab", "b"]
OPTIONS = TrainerRoutes(
    -9.0,
    columns={"prefixes": "prompt"},
    special_tokens=(EOS,),
    template=TemplateMarkers("<end>\n<bot>", "<end>\n", "<user>"),
)


class Tokenizer:
    """One token per letter; 0 ends a text. Called as `transformers` calls one."""

    eos_token = EOS
    bos_token = None

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(EOS if i == 0 else chr(i) for i in ids)

    def apply_chat_template(self, chat: list[dict[str, str]], **_: Any) -> str:
        roles = {"user": "user", "assistant": "bot"}
        return "".join(f"<{roles[m['role']]}>{m['content']}<end>\n" for m in chat)


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


def test_openrlhf_makes_its_experience(
    serve: Callable[..., Any], reward: Reward, openrlhf: Importer
) -> None:
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


@pytest.mark.parametrize("estimator", ["rloo", "group_norm", "reinforce_baseline"])
def test_openrlhf_computes_advantages_of_the_shape_that_a_reply_gives(
    openrlhf: Importer, estimator: str
) -> None:
    maker = openrlhf.module("trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    experience = openrlhf.module("trainer.ppo_utils.experience").Experience
    algo = SimpleNamespace(advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0))
    args = SimpleNamespace(
        algo=algo,
        rollout=SimpleNamespace(n_samples_per_prompt=2),
        reward=SimpleNamespace(
            clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None
        ),
    )
    algo.advantage.no_std_norm = False
    advantages = []
    for shape in ((1,), (1, 1)):  # the in-process adapter's, and a reply's
        experiences = [
            experience(
                sequences=torch.ones(1, 4, dtype=torch.long),
                action_mask=torch.ones(1, 3, dtype=torch.bool),
                kl=torch.zeros(1, 3),
                rewards=torch.full(shape, total),
                index=[i],
                info={},
            )
            for i, total in enumerate([0.25, -9.0, 0.5, 1.0])
        ]
        this = SimpleNamespace(
            strategy=SimpleNamespace(args=args),
            args=args,
            kl_ctl=SimpleNamespace(value=0.0),
            advantage_estimator=estimator,
        )
        this.get_cumulative_returns = maker.get_cumulative_returns.__get__(this)
        done = maker.compute_advantages_and_returns(this, experiences)
        advantages.append(torch.cat([one.advantages for one in done or experiences]))
    torch.testing.assert_close(advantages[0], advantages[1])
    assert advantages[0].abs().max() > 0


class Data:
    """One item of verl's `DataProto`."""

    def __init__(self, text: str) -> None:
        ids = torch.tensor([*map(ord, text), 0])
        self.batch = {"responses": ids, "attention_mask": torch.ones(len(ids), dtype=torch.long)}
        self.non_tensor_batch = {"raw_prompt": [{"role": "user", "content": PROMPT}]}

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: Any) -> Data:
        return self


@pytest.fixture
def disrm(importer: Callable[[Any], Importer]) -> Callable[..., Any]:
    found = importer(VERL)
    found.absent("ray", "ray.actor", "omegaconf", "tensordict", "verl.protocol", "verl.utils")
    found.absent("verl.single_controller.ray.base", "verl.trainer.ppo.reward", "verl.utils.fs")
    found.absent("verl.utils.ray_utils", "verl.experimental.reward_loop.reward_model")
    worker_class = found.module("experimental.reward_loop.reward_loop").RewardLoopWorker

    def score(url: str, text: str) -> float:
        worker = object.__new__(worker_class)
        worker.input_tokenizer = worker.reward_model_tokenizer = Tokenizer()
        worker.reward_router_address = url.removeprefix("http://")
        model = SimpleNamespace(enable=True, model_path="m", rollout=SimpleNamespace(name="vllm"))
        function = SimpleNamespace(path=None)
        reward = SimpleNamespace(reward_model=model, custom_reward_function=function)
        worker.config = SimpleNamespace(reward=reward)
        return asyncio.run(worker.compute_score(Data(text)))["reward_score"]

    return score


def test_verl_gets_the_rewards_of_the_process(
    serve: Callable[..., Any], reward: Reward, disrm: Callable[..., float]
) -> None:
    url = serve(reward, OPTIONS).url
    assert [disrm(url, text) for text in TEXTS] == totals_of(reward)


def test_verl_asks_again_while_the_queue_is_full(
    serve: Callable[..., Any], reward: Reward, disrm: Callable[..., float], monkeypatch: Any
) -> None:
    server = serve(reward, TrainerRoutes(**{**vars(OPTIONS), "patience": 0.0}))
    queue = server.app.state.requests
    score, seen = queue.score, []

    async def full_once(*given: Any, **more: Any) -> Any:
        seen.append(given)
        if len(seen) == 1:
            raise Refusal(429, "full", 30)
        return await score(*given, **more)

    monkeypatch.setattr(queue, "score", full_once)
    assert disrm(server.url, "ab") == totals_of(reward)[0]
    assert len(seen) == 2


def test_verl_gives_up_at_once_on_a_text_without_markers(
    serve: Callable[..., Any], reward: Reward, disrm: Callable[..., float]
) -> None:
    server = serve(reward, TrainerRoutes(-9.0, template=TemplateMarkers("<other>")))
    with pytest.raises(aiohttp.ClientResponseError, match="422"):
        disrm(server.url, "ab")


def test_slime_as_its_client_asks(serve: Callable[..., Any], reward: Reward) -> None:
    """slime is not on PyPI (the package of that name is another): its request, replayed."""
    url = f"{serve(reward, OPTIONS).url}/slime"

    async def ask(session: aiohttp.ClientSession, text: str, query: str) -> Any:
        payload = {"prompt": PROMPT, "response": text, "label": None}
        async with session.post(url + query, json=payload) as reply:
            reply.raise_for_status()
            return await reply.json()

    async def ask_all(query: str) -> list[Any]:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            return await asyncio.gather(*(ask(session, text + EOS, query) for text in TEXTS))

    assert asyncio.run(ask_all("")) == totals_of(reward)
    keyed = asyncio.run(ask_all("?components=true"))
    assert [result["total"] for result in keyed] == totals_of(reward)
    # slime tells failed samples apart by their keys only.
    assert [result["failed"] for result in keyed] == [0.0, 1.0, 0.0, 0.0]


class Message:
    """Message of a trace, as far as the client reads it."""

    def __init__(self, content: str) -> None:
        self.content, self.reasoning_content = content, None
        self.tool_calls, self.provider_state = None, None


class Assistant(Message):
    pass


class GymData(BaseModel):
    """Base of the client's data."""


class Task:
    """Base of the client's tasks."""

    def __class_getitem__(cls, _: Any) -> type[Task]:
        return cls

    def __init__(self, data: Any, config: Any) -> None:
        self.data, self.config = data, config


@pytest.fixture
def nemo_gym(importer: Callable[[Any], Importer]) -> Any:
    """verifiers' client of NeMo Gym: its requests and what it makes of the replies."""
    found = importer(VERIFIERS)
    names = "task taskset trace types state runtimes mcp envs.single_agent dialects.responses"
    modules = [f"verifiers.v1.{name}" for name in (*names.split(), "harnesses.utils.mcp")]
    found.absent("mcp", "mcp.types", "mcp.server", "mcp.server.mcpserver", *modules)
    data = ("TaskConfig", "TaskData", "State", "TasksetConfig", "SharedToolsetConfig")
    bases: dict[str, type] = dict.fromkeys(data, GymData)
    bases |= dict.fromkeys(("Task", "Taskset", "Toolset", "SingleAgentEnv"), Task)
    bases |= {"AssistantMessage": Assistant, "ToolMessage": type("ToolMessage", (), {})}
    for module in modules:
        for name, base in bases.items():
            setattr(sys.modules[module], name, base)
    return found.module("v1.tasksets.nemo_gym.taskset")


def test_nemo_gym_masks_a_failed_sample(
    nemo_gym: Any, serve: Callable[..., Any], reward: Reward
) -> None:
    """In place of a `failed_score`: the client gets why, and the sample is left out."""
    url = serve(reward, OPTIONS).url
    config = nemo_gym.NeMoGymTaskConfig(resources_url=url)

    async def roll_out(text: str) -> Any:
        row = {"responses_create_params": {"input": [{"role": "user", "content": PROMPT}]}, "id": 7}
        task = nemo_gym.NeMoGymTask(nemo_gym.NeMoGymData(row=row), config)
        trace = SimpleNamespace(id="t", info={}, metrics={})
        trace.state = nemo_gym.NeMoGymState()
        trace.record_metric = trace.metrics.__setitem__
        nodes = [(Message(PROMPT), False), (Assistant(text), True)]
        nodes = [SimpleNamespace(message=m, sampled=s, timestamp=0.0) for m, s in nodes]
        trace.branches = [SimpleNamespace(nodes=nodes)]
        await task.setup(trace, None)
        return await task.nemo_gym(trace), trace

    results = [asyncio.run(roll_out(text)) for text in TEXTS]
    batch = reward(Samples([PROMPT + text for text in TEXTS]))
    for (value, trace), total, failed in zip(results, batch.total, batch.failed, strict=True):
        assert value == pytest.approx(0.0 if failed else total)
        assert trace.info["nemo_gym"]["mask_sample"] is bool(failed)
        assert trace.info["nemo_gym"]["id"] == 7
        # NeMo RL raises unless the parts sum up to the reward, and reads a missing one as 0.
        parts = trace.info["nemo_gym"]["reward_components"]
        assert list(parts) == ["share", "length"]
        assert sum(parts.values()) == pytest.approx(value, rel=1e-5)
    assert results[0][1].info["nemo_gym"]["reward_components"]["share"] == pytest.approx(2 / 4)
    shares = [trace.metrics.get("share") for _, trace in results]
    assert shares == [pytest.approx(1 / 4), None, pytest.approx(2 / 5), 0.0]
    failure = results[1][1].info["nemo_gym"]
    assert failure["failure_reason"] == "no finite score of share"
