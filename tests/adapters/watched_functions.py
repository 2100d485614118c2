"""Reward functions of several trainers, and a call of one, at module level so that they pickle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import torch


def share(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    """The share of "a" in a completion, None without one: a function of TRL."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [text.count("a") / len(text) if "a" in text else None for text in texts]


def brevity(completions: list[str], **columns: Any) -> list[float]:
    return [-float(len(text)) for text in completions]


async def async_share(completions: list[str], **columns: Any) -> list[float | None]:
    return share([], completions)


def broken(completions: list[str], **columns: Any) -> list[float]:
    raise KeyError("no such column")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> dict[str, float]:
    """A function of verl for one sample."""
    right = float(solution_str == ground_truth)
    return {"score": right, "length": float(len(solution_str)), "failed": float(not solution_str)}


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """A function of OpenRLHF."""
    lengths = torch.tensor([float(len(query)) for query in queries])
    return {"rewards": lengths, "scores": lengths, "extra_logs": {"half": lengths / 2}}


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with keywords, a coroutine function in an event loop of its own."""
    result = function(**arguments)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result
