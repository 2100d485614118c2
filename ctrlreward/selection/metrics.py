"""Freshness and missing keys of metrics, shared by all rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def no_new_value(keys: Iterable[str], stale: Collection[str]) -> str:
    """Return why there is nothing to decide; "" if all keys have a new value.

    Examples:
        >>> no_new_value(["score/sim", "score/pp"], stale=["score/pp"])
        'no new value of score/pp'
    """
    old = [key for key in keys if key in stale]
    return f"no new value of {', '.join(old)}" if old else ""


def read(metrics: Mapping[str, float], key: str) -> float:
    """Return the value of a key.

    Raises:
        ValueError: The key is not logged; lists those that are.

    Examples:
        >>> read({"score/sim": 0.5}, "score/sim")
        0.5
    """
    if key not in metrics:
        raise ValueError(f"{key!r} is not logged: choose one of {sorted(metrics)}")
    return metrics[key]
