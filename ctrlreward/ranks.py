"""Distributed calls that raise on every rank if one rank fails.

If only one rank raised, the others would wait in their next collective until it times out. Ranks
belong to torch's default process group; without one there is a single rank, 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from torch import Tensor

# PyTorch is not imported here: commands check their arguments before they load it, and a process
# that has not loaded it is the only rank.

Result = TypeVar("Result")


def rank_and_ranks() -> tuple[int, int]:
    """Return this process's rank and the world size."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def on_every_rank(work: Callable[[], Result]) -> list[Result]:
    """Call `work` on every rank, a collective; return the pickled results of all in rank order."""
    _, ranks = rank_and_ranks()
    if ranks == 1:
        return [work()]
    import torch.distributed as dist

    value, error = _attempt(work)
    outcomes: list[Any] = [None] * ranks
    dist.all_gather_object(outcomes, (value, _describe(error)))
    for rank, (_, message) in enumerate(outcomes):
        _raise_failure(error, rank, message)
    return [value for value, _ in outcomes]


def fail_together(work: Callable[[], Result]) -> Result:
    """Call `work` on every rank, a collective; return this rank's result, or raise on all."""
    own: list[Result] = []
    on_every_rank(lambda: own.append(work()))
    return own[0]


def on_rank_zero(work: Callable[[], Result]) -> Result:
    """Call `work` on rank 0 only, a collective, and return its pickled result on every rank."""
    rank, ranks = rank_and_ranks()
    if ranks == 1:
        return work()
    import torch.distributed as dist

    value, error = _attempt(work) if rank == 0 else (None, None)
    outcome = [(value, _describe(error))]
    dist.broadcast_object_list(outcome, src=0)
    value, message = outcome[0]
    _raise_failure(error, 0, message)
    return cast(Result, value)


def gather_values(values: Tensor) -> tuple[Tensor, slice]:
    """Return the values of all ranks, in rank order, and the slice of this rank, a collective."""
    import torch

    arrays = on_every_rank(lambda: values.detach().cpu().numpy())
    start = sum(len(array) for array in arrays[: rank_and_ranks()[0]])
    gathered = torch.cat([torch.from_numpy(array) for array in arrays]).to(values.device)
    return gathered, slice(start, start + len(values))


def share_of_mean(count: Tensor) -> float:
    """Return this rank's count divided by the mean count over ranks, a collective.

    A mean over this rank's tokens, multiplied by this share and averaged over ranks, is the mean
    over the tokens of all ranks.
    """
    counts = on_every_rank(lambda: float(count))
    return counts[rank_and_ranks()[0]] * len(counts) / max(sum(counts), 1.0)


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _describe(error: Exception | None) -> str:
    if error is None:
        return ""
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _raise_failure(error: Exception | None, rank: int, message: str) -> None:
    if error is not None:  # this rank's own, with its traceback
        raise error
    if message:
        raise RuntimeError(f"rank {rank} failed with {message}")
