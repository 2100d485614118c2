"""Progress of long work as a bar of tqdm on a terminal, after two seconds."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctrlreward.ranks import rank_and_ranks


class Progress:
    """Number of finished items of some work; see `track`.

    Args:
        total: Number of all items.
        around: The work that this one is a part of; None for the outermost, which has the `bar`.
        bar: Where the number is shown, if it is.
    """

    def __init__(self, total: float, around: Progress | None, bar: tqdm[NoReturn] | None) -> None:
        self.total, self.around, self.bar = total, around, bar
        self.open = 0.0  # items of the part that is worked on
        self.inside = 0.0  # and how many of them are finished

    def advance(self, items: float) -> None:
        """Add finished items."""
        if self.around is None:
            if self.bar is not None:
                self.bar.update(items)
        elif self.total:  # work outside any part is not shown
            share = self.around.open * items / self.total
            self.around.inside += share
            self.around.advance(share)

    @contextmanager
    def part(self, items: float) -> Iterator[None]:
        """Show the work that is tracked inside as a part of these items, which it finishes."""
        self.open, self.inside = items, 0.0
        try:
            yield
        finally:
            self.open = 0.0
        self.advance(items - self.inside)


_INNERMOST: ContextVar[Progress | None] = ContextVar("innermost", default=None)


@contextmanager
def track(title: str, total: float, unit: str = "texts", done: float = 0) -> Iterator[Progress]:
    """Show how many items of long work are done, as a part of outer work if any.

    Only rank 0 shows it, and only the main thread: scoring beside training is not shown. Items of
    `done` were finished earlier.
    """
    around = _INNERMOST.get()
    bar = around.bar if around else None
    with ExitStack() as stack:
        if around is None and _is_shown():
            bar = tqdm(desc=title, total=total, initial=done, unit=unit, **_STYLE)
            stack.enter_context(bar)
            stack.enter_context(logging_redirect_tqdm())
        work = Progress(total, around, bar)
        stack.callback(_INNERMOST.reset, _INNERMOST.set(work))
        yield work


_STYLE: Mapping[str, Any] = {
    "bar_format": "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} {unit}, {remaining}",
    "delay": 2.0,
    "leave": False,
    "mininterval": 0.5,
    "miniters": 0,
    "dynamic_ncols": True,
}


def _is_shown() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    at_terminal = sys.stderr.isatty() and "CI" not in os.environ
    return in_main_thread and at_terminal and rank_and_ranks()[0] == 0
