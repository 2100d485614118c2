"""Checks of arguments: names from a list, directions of metrics, positive numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from pathlib import PurePath
from typing import Literal, TypeAlias, TypeVar, cast

Name = TypeVar("Name", bound=str)

# Better direction of a metric, as Lightning names it.
Mode: TypeAlias = Literal["max", "min"]


def one_of(argument: str, given: object, known: Iterable[Name]) -> Name:
    """Return a name if it is known."""
    names = list(known)
    for name in names:
        if name == given:
            return name
    raise ValueError(
        f"{argument} must be one of {', '.join(names)}, got {given!r}{did_you_mean(given, names)}"
    )


def some_of(argument: str, given: str | Sequence[str], known: Iterable[Name]) -> tuple[Name, ...]:
    """Return one or more known names as a tuple; a string is one name, or `"all"`."""
    names = list(known)
    if given == "all":
        return tuple(names)
    chosen = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen or len(set(chosen)) < len(chosen):
        hint = did_you_mean(unknown[0], names) if unknown else ""
        raise ValueError(
            f"{argument} must be 'all' or one or more of {', '.join(names)}, got {chosen}{hint}"
        )
    return cast("tuple[Name, ...]", chosen)


def did_you_mean(given: object, known: Iterable[str], show: Callable[[str], object] = repr) -> str:
    """Return the hint of an error, with a space before it: the most similar known name, or ""."""
    similar = get_close_matches(str(given), list(known), n=1)
    return f" (did you mean {show(similar[0])}?)" if similar else ""


def check_direction(argument: str, direction: str) -> None:
    """Raise a ValueError unless the direction is "max" or "min"."""
    if direction not in ("max", "min"):
        raise ValueError(f"{argument} must be 'max' or 'min', got {direction!r}")


def better_direction(
    key: str, mode: Mode | None, declared: Mode | None, known: Iterable[str], argument: str
) -> Mode:
    """Return the better direction of a logged key: the given one, else the declared one.

    `known` are the keys that scorers declare, for the error.

    Raises:
        ValueError: The mode would select the worst value of a score, or there is none.
    """
    if mode is not None and declared not in (None, mode):
        raise ValueError(f"{argument} must be {declared!r} for {key!r}, got {mode!r}")
    chosen = mode or declared
    if chosen is None:
        names = list(known)
        only = f" (they declare {', '.join(names)})" if names else " (it has no GenerationScorer)"
        raise ValueError(
            f"{argument} must be 'max' or 'min' for {key!r}, which no scorer of this trainer "
            f"declares{only}{did_you_mean(key, names)}"
        )
    return chosen


def sign_of(direction: str | None) -> float:
    """Return the factor that makes higher better: -1.0 for "min", else 1.0."""
    return -1.0 if direction == "min" else 1.0


Number = TypeVar("Number", int, float, int | None, float | None)


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: `"1 pair"`, `"2 pairs"`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def kind_of(value: object) -> str:
    """Return the type of a value for a message: `"a str"`, `"an int"`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def positive(argument: str, given: Number) -> Number:
    """Return a number that is positive, or None."""
    if not isinstance(given, Real | None):
        raise TypeError(f"{argument} must be a number, got {given!r}")
    if given is not None and not given > 0:
        raise ValueError(f"{argument} must be positive, got {given}")
    return given


def not_negative(argument: str, given: Number) -> Number:
    """Return a number that is 0 or more and finite, or None."""
    if given is not None and not 0 <= given < math.inf:
        raise ValueError(f"{argument} must be 0 or more, got {given}")
    return given


def inner_path(argument: str, given: str) -> str:
    """Return a name that becomes a path in a folder; raise a ValueError if that is outside it."""
    path = PurePath(given)
    if not given or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{argument} must be a name of a folder's content, got {given!r}")
    return given


def check_type(argument: str, kind: type, given: object, optional: bool = False) -> None:
    """Raise a TypeError unless an argument is an object of a class of options, or None."""
    if not (isinstance(given, kind) or (optional and given is None)):
        raise TypeError(f"{argument} must be {kind.__name__}(...), got {given!r:.80}")
