"""The contract of OpenRLHF 0.11.2.

`utils/agent.py` loads `reward_func` from the file that the option names. It calls the function
positionally with lists of one query, prompt and label, each call in a thread of its own, and reads
`rewards`, `scores` and `extra_logs`. `trainer/ppo_utils/samples_generator.py` converts the first
two by `torch.tensor([value])` and the third by `value.flatten()[0].item()`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from module_files import load

from ctrlreward.adapters.openrlhf import as_reward_func

FILE = """
import runpy
from ctrlreward import Reward
from ctrlreward.adapters.openrlhf import as_reward_func

letters = runpy.run_path({conftest!r})["Letters"]()
reward = Reward({{"share": letters["share"], "length": (letters["length"], -0.125)}})
reward_func = as_reward_func(reward, "<eos>", failed_score=-9.0, columns={{"labels": "label"}})
"""


def test_reward_func_in_a_file_called_from_threads(tmp_path: Path) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(FILE.format(conftest=str(Path(__file__).with_name("conftest.py"))))
    module = load(path)

    async def call_all() -> list[dict[str, torch.Tensor]]:
        texts = ["ab<eos>", "f<eos>", "aab"]
        return await asyncio.gather(
            *(asyncio.to_thread(module.reward_func, ["f: " + t], ["f: "], ["glad"]) for t in texts)
        )

    results = asyncio.run(call_all())
    rewards = [torch.tensor([result["rewards"]]) for result in results]
    assert torch.cat(rewards).tolist() == pytest.approx([0.25, -9.0, 2 / 3 - 0.375])
    for result in results:
        assert result["scores"] == result["rewards"]
    logged = [
        {name: value.flatten()[0].item() for name, value in result["extra_logs"].items()}
        for result in results
    ]
    assert [row["failed"] for row in logged] == [0.0, 1.0, 0.0]
    assert [row["length"] for row in logged] == [2.0, -9.0, 3.0]
    assert [row["share"] for row in logged] == pytest.approx([0.5, -9.0, 2 / 3])


def test_several_samples_with_prefixes_from_the_prompt(reward, letters) -> None:
    reward_func = as_reward_func(reward, [], -9.0, {"prefixes": "prompt", "labels": "label"})
    result = reward_func(["aab", "ab"], ["aa", "a"], ["glad", "sad"])
    assert letters.scored[0].texts == ("aab", "ab")
    assert letters.scored[0].labels == ("glad", "sad")
    assert result["rewards"].shape == (2,)
    assert result["rewards"].dtype == torch.float32


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("ab<eos>aaa<eos>", "ab"),  # what follows the end is not part of the answer
        ("ab<end>a<eos>", "ab"),
        ("oes<eo", "oes<eo"),
    ],
)
def test_the_answer_ends_at_the_first_end_token(reward, letters, completion, text) -> None:
    as_reward_func(reward, ["<eos>", "<end>"], -9.0)(["p:<eos>" + completion], ["p:<eos>"], [""])
    assert letters.scored[0].texts == (text,)
    as_reward_func(reward, "<eos>", -9.0)(["p: oes<eos>"], ["p: "], [""])  # one token
    assert letters.scored[1].texts == ("oes",)


def test_what_would_be_scored_wrong_is_an_error(reward) -> None:
    reward_func = as_reward_func(reward, [], -9.0, {"labels": "tone"})
    with pytest.raises(ValueError, match="tone"):
        reward_func(["ab"], ["a"], ["glad"])
    with pytest.raises(ValueError, match="prompts"):
        reward_func(["The soup"], ["The", "The"], ["o"])
    with pytest.raises(ValueError, match="prompts"):
        reward_func(["ab"], ["b"], ["glad"])
