"""Progress of a command's texts as a bar of tqdm on a terminal, after two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctrlreward.ranks import rank_and_ranks


@contextmanager
def track(
    title: str, total: int, unit: str = "texts", done: int = 0
) -> Iterator[Callable[[int], object]]:
    """Show on rank 0 how many items are done, of which `done` were earlier.

    The function that it yields adds finished items.
    """
    shown = {"unit": unit, "delay": 2.0, "leave": False, "dynamic_ncols": True}
    disable = None if rank_and_ranks()[0] == 0 else True  # None where there is no terminal
    with (
        tqdm(desc=title, total=total, initial=done, disable=disable, **shown) as bar,
        logging_redirect_tqdm(),
    ):
        yield bar.update
