"""Programs on a pseudo-terminal of 150 columns, and what its screen shows at the end."""

from __future__ import annotations

import os
import pty
import re
import sys
import termios
from collections.abc import Callable, Sequence


def in_terminal(
    program: Sequence[str] | Callable[[], object], **variables: str
) -> tuple[list[str], str]:
    """Run a command, or a function in a fork, with a terminal as its standard streams.

    Returns:
        The lines that are left on the screen, and all that was written there without the codes for
        colours and the cursor.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.environ.pop("CI", None)
        os.environ |= {"TERM": "xterm", "COLUMNS": "150", "LINES": "40", **variables}
        if not callable(program):
            os.execvp(program[0], program)
        status = 1
        try:
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            program()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    termios.tcsetwinsize(terminal, (40, 150))
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the program has closed it
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    written = b"".join(pieces).decode()
    assert status == 0, written
    return _screen(written), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)


def _screen(written: str) -> list[str]:
    """Return the lines of the screen, by the codes of tqdm and rich: rows up, and rows erased."""
    rows, row, column = [""], 0, 0
    for code in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if code == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif code == "\r":
            column = 0
        elif code == "\x1b[2K":
            rows[row] = ""
        elif re.fullmatch(r"\x1b\[\d+A", code):
            row -= int(code[2:-1])
        elif code[0] != "\x1b":
            text = rows[row].ljust(column)
            rows[row] = text[:column] + code + text[column + len(code) :]
            column += len(code)
    return [text.rstrip() for text in rows if text.strip()]
