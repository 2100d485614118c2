"""Progress of long work on standard error: live bars on a terminal, whole lines in a log file.

Work may have parts, and parts have parts. The outermost work chooses the form for all of them. A
terminal shows a bar for each. A file or a pipe gets a line at the start, since the first item may
take minutes, at each change of phase and otherwise every ten seconds, and at the end, without
carriage returns or colours.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ctrlreward.ranks import rank_and_ranks

# Seconds between two lines of a log, unless the phase changes.
SECONDS_PER_LINE = 10.0
# A phase of fewer seconds is announced only once in a log: some runs validate in milliseconds.
_BRIEF = 1.0


class Work(Protocol):
    """Work for `show`: a title of a few words, and the finished share, 0 to 1, None if unknown."""

    @property
    def title(self) -> str: ...  # noqa: D102 — see the class

    @property
    def share(self) -> float | None: ...  # noqa: D102 — see the class

    def text(self) -> str:
        """Return the current numbers, on one line; "" for none."""


class Count:
    """Work that finishes items one after the other; see `track` for the arguments."""

    def __init__(self, title: str, total: float, unit: str = "texts", done: float = 0) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = self._start = type(total)(done)  # both are counts, or both are sizes
        self._started = time.monotonic()

    @property
    def share(self) -> float:
        """Finished share, 0 to 1."""
        return self.done / self.total if self.total else 1.0

    def text(self) -> str:
        """Return the number of finished items, the rate, and the time left or taken."""
        # Parts of an item count for the time left, but are not shown.
        done = type(self.total)(self.done)
        form = ",.1f" if isinstance(done, float) else ","
        count = f"{done:{form}} of {self.total:{form}} {self.unit}"
        seconds = time.monotonic() - self._started
        if self.done >= self.total:
            return f"{count} in {duration(seconds)}"
        if self.done == self._start or not seconds:
            return f"{count}, time left unknown"
        rate = (self.done - self._start) / seconds
        left = duration((self.total - self.done) / rate)
        return f"{count}, {rate:.3g} {self.unit}/s, {left} left"


class Phase:
    """Work without a count, such as loading a model."""

    share = None

    def __init__(self, title: str) -> None:
        self.title = title

    def text(self) -> str:
        """Return "", since nothing is counted."""
        return ""


class Log:
    """Lines for a file or a pipe; a line names all current work, from the outermost on."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._last = ""
        self._written = self._changed = time.monotonic()
        self._titles: tuple[str, ...] = ()
        self._lasted: dict[tuple[str, ...], float] = {}  # seconds of each phase's last time

    @contextmanager
    def shown(self, work: Work) -> Iterator[None]:
        """Show work as a part of the current work; announce it unless it is a count in others."""
        self._works.append(work)
        self.update()
        if not self._last:
            self.announce()
        try:
            yield
        finally:
            is_whole = self._works == [work] and isinstance(work, Count)
            if is_whole and self._line() != self._last:
                self.announce()
            self._works.remove(work)

    def update(self) -> None:
        """Write a line if the phase has changed or the last line is ten seconds old."""
        now = time.monotonic()
        titles = tuple(work.title for work in self._works if not isinstance(work, Count))
        is_new = titles != self._titles
        if is_new:
            self._lasted[self._titles] = now - self._changed
            self._titles, self._changed = titles, now
        is_long = self._lasted.get(titles, _BRIEF) >= _BRIEF
        if (is_new and is_long) or now - self._written >= SECONDS_PER_LINE:
            self.announce()

    def announce(self) -> None:
        """Write a line now."""
        self._last = self._line()
        write_line(self._last)
        self._written = time.monotonic()

    def _line(self) -> str:
        first, *parts = self._works
        unfinished = [work for work in parts if work.share != 1.0]
        texts = [(work.title, work.text()) for work in (first, *unfinished)]
        return " | ".join(f"{title}: {text}" if text else title for title, text in texts)


class Terminal(Log):
    """Live bars, one row for each work; printed and logged lines appear above them."""

    @contextmanager
    def shown(self, work: Work) -> Iterator[None]:
        """Show a row for work; the outermost work starts and ends the display."""
        with super().shown(work):
            if len(self._works) > 1:
                yield
                return
            stderr = sys.stderr
            loggers = [logging.root, *logging.root.manager.loggerDict.values()]
            handlers = [h for one in loggers for h in vars(one).get("handlers", ())]
            handlers = [h for h in handlers if isinstance(h, logging.StreamHandler)]
            # Handlers keep the stream that they began with.
            moved = [h for h in handlers if vars(h).get("stream") is stderr]
            live = Live(
                get_renderable=self._rows,
                console=Console(file=stderr),  # also while others redirect sys.stderr
                refresh_per_second=2,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # data goes to a file
            )
            with live:
                live.refresh()  # at once
                for handler in moved:
                    handler.setStream(sys.stderr)
                try:
                    yield
                finally:
                    for handler in moved:
                        handler.setStream(stderr)

    def update(self) -> None:
        """Do nothing: the rows are redrawn twice a second."""

    announce = update

    def _rows(self) -> Table:
        rows = Table.grid(padding=(0, 1))
        for _ in range(3):
            rows.add_column(no_wrap=True)
        for work in tuple(self._works):
            bar = ProgressBar(1.0, work.share or 0.0, width=20, pulse=work.share is None)
            rows.add_row(Text(work.title), bar, Text(work.text()))
        return rows


# Of the outermost work; None in other threads.
_DISPLAY: ContextVar[Log | None] = ContextVar("display", default=None)


@contextmanager
def show(work: Work) -> Iterator[Log]:
    """Show work on standard error, as a part of outer work if any; yield its display."""
    outer = _DISPLAY.get()
    if outer:
        with outer.shown(work):
            yield outer
        return
    display = Terminal() if at_terminal() and _in_main_thread() else Log()
    _DISPLAY.set(display)
    try:
        with display.shown(work):
            yield display
    finally:
        _DISPLAY.set(None)


@contextmanager
def track(
    title: str, total: float, unit: str = "texts", done: float = 0
) -> Iterator[Callable[[float], None]]:
    """Show how many items of long work are done; yield the function that adds finished items.

    Only rank 0 shows its work, and only from the main thread. Items of `done` were finished
    earlier; they count for the share, not for the rate.
    """
    if rank_and_ranks()[0] or not _in_main_thread():
        yield lambda items: None
        return
    count = Count(title, total, unit, done)
    with show(count) as display:

        def advance(items: float) -> None:
            count.done += items
            display.update()

        yield advance


def track_part(
    title: str, total: float, unit: str = "texts"
) -> AbstractContextManager[Callable[[float], None]]:
    """Return `track` within shown work, else a context that shows nothing."""
    return track(title, total, unit) if _DISPLAY.get() else nullcontext(lambda items: None)


def at_terminal() -> bool:
    """Return True if standard error is a terminal that can redraw a line, outside CI."""
    dumb = os.environ.get("TERM") == "dumb"
    return not dumb and "CI" not in os.environ and sys.stderr.isatty()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def duration(seconds: float) -> str:
    """Return seconds in the two largest units of hours, minutes and seconds."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def write_line(text: str) -> None:
    """Write a line with the time of day to standard error at once, above the bars if any."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
