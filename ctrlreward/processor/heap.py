"""Heap trimming: free pages of glibc's heap are returned to the system.

Large tensors of changing sizes leave holes in the heap that the next ones do not fit into. Resident
memory then grows from batch to batch, although the memory in use does not.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# Growth of resident memory that triggers a trim. A trim is cheap, but its pages must be mapped
# again: 8.8 s with 48 MiB, 9.2 with 32, 8.5 with 64, 8.1 to 8.7 without trims (PEGASUS on two
# cores, three aspects of 48 texts).
_GROWTH = 48 * 2**20

_STATM = Path("/proc/self/statm")

_least = sys.maxsize  # fewest resident bytes seen since the last trim


def trim_if_grown() -> None:
    """Trim the heap if resident memory has grown by 48 MiB since its last minimum.

    Takes microseconds otherwise, and does nothing without /proc.
    """
    global _least  # one heap per process
    try:
        now = _resident()
    except OSError:
        return
    _least = min(_least, now)
    if now - _least > _GROWTH:
        trim()
        _least = _resident()


def trim() -> None:
    """Return free pages of the heap to the system, if the C library is glibc."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if release is not None:
        release(0)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
