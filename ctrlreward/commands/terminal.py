"""What all commands do at the terminal: errors in a line, and output as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jsonargparse import ArgumentParser
from rich.console import Console


@contextmanager
def user_errors(parser: ArgumentParser) -> Iterator[None]:
    """Ends the process as a wrong option does, where what the user gave can't be used."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))


def plain_console(width: int | None = None) -> Console:
    """A console that prints names as they are: `acc[train]` and `x:a:` are no markup.

    Args:
        width: None for the terminal's.
    """
    return Console(width=width, markup=False, emoji=False, highlight=False)
