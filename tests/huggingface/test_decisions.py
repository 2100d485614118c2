"""Six cases of the table of decisions, driven through `Trainer` and our callbacks on two ranks."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decision_cases import BY_PROMPT, TABLE, HandDriven, without_prompts
from lightning_utilities.core.imports import compare_version

pytestmark = pytest.mark.usefixtures("one_thread")


# Each with the step at which a run is interrupted and resumed.
BY_MEANS = {
    "recovers in time": 5,
    "every third, patience of one": 4,
    "constraint from both sides": 5,
}
PROMPTS = {"alarm after a rise": 2, "a decline stops": 2, "noise is no improvement": 2}


@pytest.fixture(scope="module")
def ranks(
    tiny_llama: Callable[[str], str],
    run_ranks: Callable[..., list[Any]],
) -> list[dict[str, Any]]:
    """Decisions of both ranks."""
    if not compare_version("transformers", operator.ge, "5.18"):
        pytest.skip("transformers 5.17 can't resume on several CPU ranks: it loads to cpu:0")
    script = Path(__file__).with_name("two_ranks.py")
    names = [f"{name}:{cut}" for name, cut in (BY_MEANS | PROMPTS).items()]
    return run_ranks(script, tiny_llama("abcdef"), *names)


def text(state: dict[str, Any]) -> str:
    """Return JSON, in which NaN equals NaN, with sorted keys as in `trainer_state.json`."""
    return json.dumps(without_prompts(json.loads(json.dumps(state))), sort_keys=True)


@pytest.mark.parametrize("name", BY_MEANS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_case_by_means(ranks: list[dict[str, Any]], rank: int, name: str) -> None:
    case, found = TABLE[name], ranks[rank]["cases"][name]
    by_hand = HandDriven(case).play(BY_MEANS[name]).states
    assert found["steps"] == case.stop
    stop, front = found["states"]["stop"], found["states"]["front"]
    assert stop["stopped_by"] == by_hand["stop"].stopped_by == case.reason
    assert text(stop) == text(by_hand["stop"].to_dict())
    assert text(front) == text(by_hand["front"].to_dict())
    assert {int(step) for step in front["kept"]} == case.front
    selected = max(case.best)
    assert found["selected"] == found["best_global_step"] == selected
    assert case.best | case.front <= set(found["checkpoints"])
    assert found["best_model_checkpoint"].endswith(f"checkpoint-{selected}")


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_case_by_prompt(ranks: list[dict[str, Any]], rank: int, name: str) -> None:
    case, found = BY_PROMPT[name], ranks[rank]["cases"][name]
    by_hand = HandDriven(case).play().states
    hand = {key: json.loads(json.dumps(s.to_dict())) for key, s in by_hand.items()}
    states, expected = without_prompts(found["states"]), without_prompts(hand)
    assert found["steps"] == case.stop
    assert states["stop"] == expected["stop"]
    assert states["stop"]["stopped_by"] == case.cause
    assert states["best"]["candidates"] == expected["best"]["candidates"]
    assert states["alarm"] == expected["alarm"]
    assert states["alarm"]["alarm_step"] == case.alarm
    digests = {
        prompts["score/a"]
        for each in found["states"]["best"]["candidates"].values()
        if (prompts := each["prompts"])
    }
    assert len(digests) == 1
    assert found["selected"] == found["best_global_step"] == case.selected


def test_rank_zero_decides_on_a_metric_that_differs_by_rank(ranks: list[dict[str, Any]]) -> None:
    """Each rank logs its own value: it rises on rank 0 and falls on rank 1."""
    first, second = (rank["differs"] for rank in ranks)
    assert first["logged"] == [1, 2, 3, 4, 5]
    assert second["logged"] == [-1, -2, -3, -4, -5]
    for rank in (first, second):
        assert rank["steps"] == 5
        assert rank["states"]["stop"]["stopped_by"] is None
        assert rank["states"]["stop"]["best"] == rank["states"]["best"]["kept"]["5"] == 5
        assert rank["selected"] == rank["best_global_step"] == 5
    assert (first["scored"], second["scored"]) == (5, 0)


def test_each_rank_brings_as_many_prompts_to_vllm(ranks: list[dict[str, Any]]) -> None:
    """Three prompts, and one prompt: the second rank has fewer, or none."""
    for rank in ranks:
        three, one = rank["vllm"]
        assert three == [text for text in ("abab", "cdcd", "efef") for _ in range(2)]
        assert one == ["abab", "abab"]
