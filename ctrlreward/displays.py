"""Displays of work in progress: live bars on a terminal, whole lines in a log file."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

# Between two lines of a log, unless the phase changes.
SECONDS_PER_LINE = 10.0
# A phase of fewer seconds is announced in a log once only.
_BRIEF = 1.0


class Work(Protocol):
    """Work with a progress; `show` displays it.

    Attributes:
        title: A few words, such as "validation".
        share: Share that is done, 0 to 1; None if it is not known.
    """

    @property
    def title(self) -> str: ...  # noqa: D102 — see the class

    @property
    def share(self) -> float | None: ...  # noqa: D102 — see the class

    def text(self) -> str:
        """Return the numbers of now, on one line; "" for none."""


class Count:
    """Work that finishes items one after the other.

    Args:
        title: A few words that name the work.
        total: Number of items.
        unit: Plural of an item.
        done: Items that were finished earlier; they count for the share, not for the rate.
    """

    def __init__(self, title: str, total: float, unit: str = "texts", done: float = 0) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = self._start = type(total)(done)  # both are counts, or both are sizes
        self._started = time.monotonic()

    @property
    def share(self) -> float:
        """Share that is done, 0 to 1."""
        return self.done / self.total if self.total else 1.0

    def text(self) -> str:
        """Return items done of all, and items per second and time left, or the time it took."""
        # Parts of an item count for the time left, and are not shown.
        count = f"{_number(type(self.total)(self.done))} of {_number(self.total)} {self.unit}"
        seconds = time.monotonic() - self._started
        finished = self.done - self._start
        if self.done >= self.total:
            return f"{count} in {duration(seconds)}"
        if not (finished and seconds):
            return f"{count}, time left unknown"
        rate = finished / seconds
        left = duration((self.total - self.done) / rate)
        return f"{count}, {rate:.3g} {self.unit}/s, {left} left"


class Phase:
    """Work without a count, such as loading a model.

    Args:
        title: A few words that name the phase.
    """

    share = None

    def __init__(self, title: str) -> None:
        self.title = title

    def text(self) -> str:
        """Return "", since nothing is counted."""
        return ""


class Log:
    """Lines for a file or a pipe; a line names all work that is going on, from the outermost on.

    A phase that took less than a second is not announced again: some runs validate in milliseconds.
    """

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._lines = 0
        self._written = self._changed = time.monotonic()
        self._titles: tuple[str, ...] = ()
        self._lasted: dict[tuple[str, ...], float] = {}  # seconds of each phase's last time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def shown(self, work: Work) -> Iterator[None]:
        """Show work as a part of what is shown; announce it unless it is a count."""
        self._works.append(work)
        self.update()
        try:
            yield
        finally:
            if self._lines and self._works == [work] and isinstance(work, Count):
                self.announce()
            self._works.remove(work)

    def update(self) -> None:
        """Write a line if the phase has changed or the last line is ten seconds old."""
        now = time.monotonic()
        if self._entered_long_phase(now) or now - self._written >= SECONDS_PER_LINE:
            self.announce()

    def announce(self) -> None:
        """Write a line now."""
        first, *parts = self._works
        unfinished = [part for part in parts if part.share != 1.0]
        texts = [(work.title, work.text()) for work in (first, *unfinished)]
        write_line(" | ".join(f"{title}: {text}" if text else title for title, text in texts))
        self._written = time.monotonic()
        self._lines += 1

    def _entered_long_phase(self, now: float) -> bool:
        titles = tuple(work.title for work in self._works if not isinstance(work, Count))
        if titles == self._titles:
            return False
        self._lasted[self._titles] = now - self._changed
        self._titles, self._changed = titles, now
        return self._lasted.get(titles, _BRIEF) >= _BRIEF


class Terminal:
    """Live bars, a row for each work; what is printed or logged meanwhile appears above them."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._stderr = sys.stderr
        self._handlers: list[logging.StreamHandler[Any]] = []
        self._live = Live(
            get_renderable=self._rows,
            console=Console(file=self._stderr),  # also while others redirect sys.stderr
            refresh_per_second=2,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # data in a file stays there
        )

    def __enter__(self) -> Self:
        self._live.start()
        self._handlers = _handlers(self._stderr)
        for handler in self._handlers:  # they keep the stream that they began with
            handler.setStream(sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for handler in self._handlers:
            handler.setStream(self._stderr)

    @contextmanager
    def shown(self, work: Work) -> Iterator[None]:
        """Show a row for work."""
        self._works.append(work)
        if len(self._works) == 1:
            self._live.refresh()
        try:
            yield
        finally:
            self._works.remove(work)

    def update(self) -> None:
        """Do nothing: the rows are redrawn twice a second."""

    announce = update

    def _rows(self) -> Table | Text:
        if not self._works:
            return Text("")  # of one row, which rich removes at the end
        rows = Table.grid(padding=(0, 1))
        for _ in range(3):
            rows.add_column(no_wrap=True)
        for work in tuple(self._works):
            bar = ProgressBar(1.0, work.share or 0.0, width=20, pulse=work.share is None)
            rows.add_row(Text(work.title), bar, Text(work.text()))
        return rows


def duration(seconds: float) -> str:
    """Return seconds in the two largest units of hours, minutes and seconds.

    Examples:
        >>> [duration(seconds) for seconds in (8.4, 75, 7300)]
        ['8 s', '1 min 15 s', '2 h 1 min']
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def write_line(text: str) -> None:
    """Write a line with the time of day to standard error at once, above the bars if there are."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _handlers(stream: object) -> list[logging.StreamHandler[Any]]:
    """Return the handlers of all loggers that keep a stream."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [h for one in loggers if isinstance(one, logging.Logger) for h in one.handlers]
    streams = [h for h in handlers if isinstance(h, logging.StreamHandler)]
    return [h for h in streams if vars(h).get("stream") is stream]


def _number(value: float) -> str:
    """Return a count with thousands separators, and with one decimal if it is not an integer."""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
