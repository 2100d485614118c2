"""Terminal output that all commands share: examples, one-line errors, plain text, tables.

This module does not import PyTorch, so that a mistake is reported at once.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment
from rich.table import Table

if TYPE_CHECKING:
    from ctrlreward.scorers.base import ScoreSpec


ARROWS: dict[str | None, str] = {"max": " ↑", "min": " ↓", None: ""}
"""Sign of a better direction, after the name of a score."""


def examples_epilog(examples: Sequence[str]) -> str:
    """Return the end of a command's help: one line per example."""
    return "\n".join(["examples:", *(f"  {example}" for example in examples)])


def plain_parser(command: str, description: str, examples: Sequence[str]) -> ArgumentParser:
    """Return a parser of argparse for `"ctrlreward recipes"`; its help ends with examples."""
    return ArgumentParser(
        prog=command,
        description=description,
        epilog=examples_epilog(examples),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


@contextmanager
def user_errors(resumes: Callable[[], bool] = bool) -> Iterator[None]:
    """Print an error in the user's input in one line, with the notes on it, and exit with 2.

    An interruption exits with 130; `resumes` is whether repeating the command resumes it.
    """
    try:
        yield
    except KeyboardInterrupt:
        hint = ": repeat the command to resume" if resumes() else ""
        print(f"interrupted{hint}", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader has all that it wants
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        lines = [f"error: {error}", *getattr(error, "__notes__", [])]
        print(printable("\n".join(lines)), file=sys.stderr)
        raise SystemExit(2) from None


# All but tab and line feed, and those that reverse the order of letters.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text with U+FFFD for characters that would control the terminal.

    Examples:
        >>> printable("score/" + chr(27) + "[2J")
        'score/�[2J'
    """
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


class _PlainConsole(Console):
    """A console without the control characters of what it prints."""

    def render(self, *args: Any, **kwargs: Any) -> Iterator[Segment]:
        for segment in super().render(*args, **kwargs):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def plain_console(width: int | None = None) -> Console:
    """Return a console that prints names such as `acc[train]` and `x:a:` without markup."""
    return _PlainConsole(width=width, markup=False, emoji=False, highlight=False)


def number_table(names: Sequence[str], numbers: Sequence[str], **options: Any) -> Table:
    """Return a table without rows: columns of names on the left, columns of numbers."""
    table = Table(**options)
    for name in names:
        table.add_column(name, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", overflow="fold")
    return table


def direction_arrow(spec: ScoreSpec) -> str:
    """Return ↑ for a score where higher is better, else ↓."""
    return "↑" if spec.higher_is_better else "↓"
