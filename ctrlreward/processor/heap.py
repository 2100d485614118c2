"""glibc's heap: freed memory is returned to the system while scoring, and reused while training.

Large tensors of changing sizes leave holes in the heap that the next ones do not fit into. Resident
memory then grows from batch to batch, although the memory in use does not: trims return them.

A training step frees gigabytes and needs them again at the next step. To map them anew costs up to
a third of an update, so they are kept.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path

# Growth of resident memory that triggers a trim. A trim is cheap, but its pages must be mapped
# again: 8.8 s with 48 MiB, 9.2 with 32, 8.5 with 64, 8.1 to 8.7 without trims (PEGASUS on two
# cores, three aspects of 48 texts).
_GROWTH = 48 * 2**20

_STATM = Path("/proc/self/statm")

# Options of mallopt, of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4

# One heap per process:
_least = sys.maxsize  # fewest resident bytes seen since the last trim
_peak: int | None = None  # most resident bytes of a training step; None outside training
_steps = 0  # training steps since the last trim


def trim_if_grown() -> None:
    """Trim the heap if resident memory has grown by 48 MiB since its last minimum.

    During training: if it has grown by a quarter above what a step needs. Takes microseconds
    otherwise, and does nothing without /proc.
    """
    global _least, _steps
    try:
        now = _resident()
    except OSError:
        return
    _least = min(_least, now)
    if now > _limit():
        trim()
        _least, _steps = _resident(), 0


def _limit() -> float:
    if _peak is None:
        return _least + _GROWTH
    # The second step since a trim has seen all that a step allocates, and few holes.
    return math.inf if _steps < 2 else 1.25 * _peak


def reuse_freed() -> None:
    """Keep freed memory in the process, until `return_freed`."""
    global _peak, _steps
    _peak, _steps = 0, 0
    _mallopt(_MMAP_MAX, 0)  # a mapped block is unmapped when it is freed
    _mallopt(_TRIM_THRESHOLD, -1)  # never


def end_step() -> None:
    """Note the resident memory after a training step; nothing outside training."""
    global _peak, _steps
    if _peak is None:
        return
    _steps += 1
    if _steps == 2 and _STATM.exists():
        _peak = max(_peak, _resident())


def return_freed() -> None:
    """Return freed memory to the system, from now on."""
    global _peak
    if _peak is not None:
        _peak = None
        # glibc adjusts its thresholds until they are set: these are the highest that it reaches.
        _mallopt(_MMAP_MAX, 65536)
        _mallopt(_MMAP_THRESHOLD, 32 * 2**20)
        _mallopt(_TRIM_THRESHOLD, 64 * 2**20)
        trim()


def trim() -> None:
    """Return free pages of the heap to the system, if the C library is glibc."""
    _call("malloc_trim", 0)


def _mallopt(option: int, value: int) -> None:
    _call("mallopt", option, value)


def _call(name: str, *values: int) -> None:
    """Call a function of the C library, if it has it."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*values)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
