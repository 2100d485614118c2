"""Free pages of the C library's heap go back to the system, so that it doesn't grow with the work.

Large tensors of changing sizes leave holes between what is kept that the next ones don't fit into:
glibc's heap then grows from batch to batch though what is in use doesn't.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# How much a process grows before its heap is trimmed. A trim costs little, but the pages that it
# gave back must come again: 8.8 s with 48 MiB, 9.2 with 32, 8.5 with 64, 8.1 to 8.7 without trims
# (PEGASUS on two cores, three aspects of 48 texts).
_GROWTH = 48 * 2**20

_STATM = Path("/proc/self/statm")

_least = sys.maxsize  # bytes that were resident after the last trim, or at any look since


def trim_if_grown() -> None:
    """Trims the heap where the process has grown by 48 MiB since it last was that small.

    It takes microseconds where nothing has grown, and does nothing where there is no /proc.
    """
    global _least  # a process has one heap
    try:
        now = _resident()
    except OSError:
        return
    _least = min(_least, now)
    if now - _least > _GROWTH:
        trim()
        _least = _resident()


def trim() -> None:
    """Gives the heap's free pages back to the system, where the C library is glibc."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if release is not None:
        release(0)


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
