"""Work shared out over ranks, so that a failure on one rank is raised on all of them.

A rank that raises alone leaves the others waiting in their next collective until it times out.
Ranks are those of torch's default process group; without one there is a single rank, 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

Result = TypeVar("Result")


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank, and how many ranks there are."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def on_every_rank(work: Callable[[], Result]) -> list[Result]:
    """Does the work on every rank and gives all ranks the results of all, in rank order.

    Every rank has to make this call.

    Args:
        work: Its result is pickled to travel.

    Raises:
        Exception: What the work raised on this rank.
        RuntimeError: The work failed on another rank; carries that rank's message.
    """
    _, ranks = rank_and_ranks()
    if ranks == 1:
        return [work()]
    value, error = _attempt(work)
    outcomes: list[tuple[Result | None, str] | None] = [None] * ranks
    dist.all_gather_object(outcomes, (value, _describe(error)))
    done = [outcome for outcome in outcomes if outcome is not None]
    for rank, (_, message) in enumerate(done):
        _raise(error, rank, message)
    return [cast(Result, value) for value, _ in done]


def unless_one_fails(work: Callable[[], Result]) -> Result:
    """Does the work on every rank and gives each its own result, if all have one.

    Every rank has to make this call. No result travels.

    Raises:
        Exception: What the work raised on this rank.
        RuntimeError: The work failed on another rank; carries that rank's message.
    """
    own: list[Result] = []
    on_every_rank(lambda: own.append(work()))
    return own[0]


def on_rank_zero(work: Callable[[], Result]) -> Result:
    """Does the work on rank 0 alone and gives its result to every rank.

    Every rank has to make this call. The others wait meanwhile, no longer than the timeout of the
    process group.

    Args:
        work: Its result is pickled to travel.

    Raises:
        Exception: What the work raised, on rank 0.
        RuntimeError: The work failed, on the other ranks; carries rank 0's message.
    """
    rank, ranks = rank_and_ranks()
    if ranks == 1:
        return work()
    value, error = _attempt(work) if rank == 0 else (None, None)
    outcome = [(value, _describe(error))]
    dist.broadcast_object_list(outcome, src=0)
    value, message = outcome[0]
    _raise(error, 0, message)
    return cast(Result, value)


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _describe(error: Exception | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


def _raise(error: Exception | None, rank: int, message: str) -> None:
    if error is not None:  # this rank's own, with its traceback
        raise error
    if message:
        raise RuntimeError(f"rank {rank} failed with {message}")
