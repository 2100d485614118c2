"""Progress of long work on standard error: a tqdm bar on a terminal, whole lines in a log.

Work within work moves the bar of the outermost. After its first part, work of more than a minute
says how long it will take; shorter work leaves no line in a log.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import NoReturn

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctrlreward.ranks import rank_and_ranks

# Seconds of work that a terminal shows, that tell how long it will take, that are announced, and
# between two lines of a log.
_SHOWN, _MEASURED, _ANNOUNCED, _BETWEEN_LINES = 2.0, 5.0, 60.0, 10.0


class Progress:
    """Number of finished items of some work.

    Args:
        total: Number of all items.
        done: Items that were finished earlier.
        show: Called with the number of finished items, parts of an item included.
    """

    def __init__(self, total: float, done: float, show: Callable[[float], None]) -> None:
        self.total, self.done = total, done
        self._show = show
        show(done)

    def advance(self, items: float) -> None:
        """Add finished items."""
        self.done += items
        self._show(self.done)

    @contextmanager
    def part(self, items: float) -> Iterator[None]:
        """Show the work that is tracked inside as a part of these items, which it finishes."""
        outer = _SHARE.get()
        _SHARE.set(lambda share: self._show(self.done + share * items))
        try:
            yield
        finally:
            _SHARE.set(outer)
        self.advance(items)


# Shows the finished share of a part of the work around, 0 to 1; None without one.
_SHARE: ContextVar[Callable[[float], None] | None] = ContextVar("share", default=None)


@contextmanager
def track(title: str, total: float, unit: str = "texts", done: float = 0) -> Iterator[Progress]:
    """Show how many items of long work are done, as a part of outer work if any.

    Only rank 0 shows its work, and only from the main thread. Items of `done` were finished
    earlier; they count for the share, not for the rate.
    """
    outer = _SHARE.get()
    if outer is not None:
        _SHARE.set(_hide)
        try:
            yield Progress(total, done, lambda items: outer(items / total if total else 1.0))
        finally:
            _SHARE.set(outer)
        return
    if rank_and_ranks()[0] or threading.current_thread() is not threading.main_thread():
        yield Progress(total, done, lambda items: None)
        return
    display = _Display(title, total, unit, done)
    with ExitStack() as contexts:
        if display.bar is not None:
            contexts.callback(display.bar.close)
            contexts.enter_context(logging_redirect_tqdm())
        contexts.callback(_SHARE.set, None)
        _SHARE.set(_hide)
        yield Progress(total, done, display.show)


def _hide(share: float) -> None:
    """Ignore the progress of work outside any `part`."""


class _Display:
    """The outermost work: a bar on a terminal, or lines of a log if it takes more than a minute."""

    def __init__(self, title: str, total: float, unit: str, start: float) -> None:
        self.title, self.total, self.unit, self.start = title, total, unit, start
        self.began = self.written = time.monotonic()
        self.is_long: bool | None = None  # None: too little is finished
        self.bar = _bar(title, total, start) if at_terminal() else None

    def show(self, done: float) -> None:
        """Show the number of finished items."""
        now = time.monotonic()
        if done <= self.start:
            self.began = now  # until now, models were loaded
            return
        count = f"{done:,.0f} of {self.total:,.0f} {self.unit}"
        rate = (done - self.start) / max(now - self.began, 1e-9)
        left = duration((self.total - done) / rate)
        if self.bar is not None:
            self.bar.set_postfix_str(count, refresh=False)
            self.bar.update(done - self.bar.n)
        if self.is_long is None and now - self.began >= _MEASURED:
            self.is_long = (self.total - self.start) / rate > _ANNOUNCED
            if self.is_long:
                write_line(f"{self.title} {self.total:,.0f} {self.unit}: about {left}")
                self.written = now
        elif self.is_long and self.bar is None and now - self.written >= _BETWEEN_LINES:
            write_line(f"{self.title}: {count}, {left} left")
            self.written = now


def _bar(title: str, total: float, start: float) -> tqdm[NoReturn]:
    return tqdm(
        desc=title,
        total=total,
        initial=start,
        bar_format="{desc}: {percentage:3.0f}%|{bar}|{postfix}, {remaining} left",
        leave=False,
        delay=_SHOWN,
        mininterval=0.5,
        miniters=0,
        dynamic_ncols=True,
    )


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
