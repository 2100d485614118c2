"""Progress of long work as a bar of tqdm on a terminal, after two seconds."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctrlreward.ranks import rank_and_ranks

_shown = False  # is there a bar


@contextmanager
def track(
    title: str, total: float, unit: str = "texts", done: float = 0
) -> Iterator[Callable[[float], object]]:
    """Show how many items of long work are done; the function that it yields adds finished items.

    Only rank 0 shows it, and only the main thread: scoring beside training is not shown, nor is
    work inside other work that has a bar. Items of `done` were finished earlier.
    """
    global _shown
    if _shown or not _is_visible():
        yield lambda items: None
        return
    _shown = True
    try:
        with (
            tqdm(desc=title, total=total, initial=done, unit=unit, **_STYLE) as bar,
            logging_redirect_tqdm(),
        ):
            yield bar.update
    finally:
        _shown = False


_STYLE: Mapping[str, Any] = {
    "bar_format": "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} {unit}, {remaining}",
    "delay": 2.0,
    "leave": False,
    "mininterval": 0.5,
    "miniters": 0,
    "dynamic_ncols": True,
}


def _is_visible() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    at_terminal = sys.stderr.isatty() and "CI" not in os.environ
    return in_main_thread and at_terminal and rank_and_ranks()[0] == 0
