"""What the processor is, by what it says of itself: a timing would differ on a busy machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@cache
def words() -> frozenset[str]:
    """Vendor, names and instruction sets as the system lists them; empty where it doesn't."""
    try:
        return frozenset(_CPUINFO.read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()
