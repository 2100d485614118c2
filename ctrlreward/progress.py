"""Progress of long work on standard error: a tqdm bar on a terminal, whole lines in a log.

Work within work moves the bar of the outermost. After five seconds that follow its first item, work
of more than a minute says how long it will take; shorter work leaves no line in a log.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import NoReturn

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctrlreward.ranks import rank_and_ranks

# Seconds of work that show nothing, that tell how long it will take, that are announced, and
# between two lines of a log.
_HIDDEN, _MEASURED, _ANNOUNCED, _BETWEEN_LINES = 2.0, 5.0, 60.0, 10.0


class Progress:
    """Number of finished items of some work; see `track`.

    Args:
        around: The work that this one is a part of; None for the outermost, which is shown.
    """

    def __init__(
        self, title: str, total: float, unit: str, done: float, around: Progress | None
    ) -> None:
        self.title, self.total, self.unit, self.around = title, total, unit, around
        self.done = self.start = done
        self.inside = 0.0  # items of the part that is open
        self.began = self.written = time.monotonic()
        self.is_warm = False  # the first item is finished
        self.is_long: bool | None = None  # None: too little is finished
        self.bar: tqdm[NoReturn] | None = None
        self.at_end = ExitStack()

    def advance(self, items: float) -> None:
        """Add finished items."""
        self.done += items
        work, done = self, self.done
        while (around := work.around) is not None:
            if not around.inside:  # work outside any part is not shown
                return
            done = around.done + around.inside * (done / work.total if work.total else 1.0)
            work = around
        work.show(done)

    @contextmanager
    def part(self, items: float) -> Iterator[None]:
        """Show the work that is tracked inside as a part of these items, which it finishes."""
        self.inside = items
        try:
            yield
        finally:
            self.inside = 0.0
        self.advance(items)

    def show(self, done: float) -> None:
        """Show the number of finished items, on rank 0 and from the main thread only."""
        now = time.monotonic()
        if done <= self.start:
            self.began = now  # until now, models were loaded
            return
        elapsed = now - self.began
        if not self.is_warm and done >= self.start + 1:
            self.is_warm = True
            if elapsed > 1 and done < self.start + 2:
                # Alone it takes longer than among others, and some work is done for all of them.
                self.began, self.start = now, done
                return
        if elapsed < _HIDDEN or rank_and_ranks()[0] or not _in_main_thread():
            return
        rate = (done - self.start) / elapsed
        count = f"{done:,.0f} of {self.total:,.0f} {self.unit}"
        left = duration((self.total - done) / rate)
        if self.bar is None and at_terminal():
            self.bar = self.at_end.enter_context(_bar(self.title, self.total))
            self.at_end.enter_context(logging_redirect_tqdm())
        if self.bar is not None:
            self.bar.set_postfix_str(f"{count}, {left} left", refresh=False)
            self.bar.update(done - self.bar.n)
        if self.is_long is None and elapsed >= (_MEASURED if self.is_warm else 4 * _MEASURED):
            self.is_long = (self.total - self.start) / rate > _ANNOUNCED
            if self.is_long:
                write_line(f"{self.title} {self.total:,.0f} {self.unit}: about {left}")
                self.written = now
        elif self.is_long and self.bar is None and now - self.written >= _BETWEEN_LINES:
            write_line(f"{self.title}: {count}, {left} left")
            self.written = now


_INNERMOST: ContextVar[Progress | None] = ContextVar("innermost", default=None)


@contextmanager
def track(title: str, total: float, unit: str = "texts", done: float = 0) -> Iterator[Progress]:
    """Show how many items of long work are done, as a part of outer work if any.

    Items of `done` were finished earlier; they count for the share, not for the rate.
    """
    around = _INNERMOST.get()
    progress = Progress(title, total, unit, done, around)
    _INNERMOST.set(progress)
    try:
        with progress.at_end:
            progress.advance(0)
            yield progress
    finally:
        _INNERMOST.set(around)


def _bar(title: str, total: float) -> tqdm[NoReturn]:
    return tqdm(
        desc=title,
        total=total,
        bar_format="{desc}: {percentage:3.0f}%|{bar}|{postfix}",
        leave=False,
        mininterval=0.5,
        miniters=0,
        dynamic_ncols=True,
    )


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def at_terminal() -> bool:
    """Return True if standard error is a terminal that can redraw a line, outside CI."""
    dumb = os.environ.get("TERM") == "dumb"
    return not dumb and "CI" not in os.environ and sys.stderr.isatty()


def duration(seconds: float) -> str:
    """Return seconds in the two largest units of hours, minutes and seconds."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def write_line(text: str) -> None:
    """Write a line with the time of day to standard error at once, above a bar if any."""
    tqdm.write(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)
    sys.stderr.flush()
