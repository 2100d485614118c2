"""Checks of arguments: names out of a list, positive numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal, TypeAlias, TypeVar, cast

Name = TypeVar("Name", bound=str)

# Better direction of a metric, as Lightning names it.
Mode: TypeAlias = Literal["max", "min"]


def one_of(argument: str, given: object, known: Iterable[Name]) -> Name:
    """Return a name if it is known.

    Args:
        argument: Name of the argument, for the error.
        given: The value to check.
        known: The names that it may have.

    Raises:
        ValueError: The value is none of them; lists them, the most similar one apart.
    """
    names = list(known)
    for name in names:
        if name == given:
            return name
    raise ValueError(f"{argument} = {given!r}: give one of {', '.join(names)}{_hint(given, names)}")


def some_of(argument: str, given: str | Sequence[str], known: Iterable[Name]) -> tuple[Name, ...]:
    """Return one or more known names as a tuple; a single string is one name.

    Args:
        argument: Name of the argument, for the error.
        given: A name, or a sequence of them.
        known: The names that may be given.

    Raises:
        ValueError: There is no name, a name twice, or one that is unknown; lists those that are
            known.
    """
    names = list(known)
    chosen = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen or len(set(chosen)) < len(chosen):
        hint = _hint(unknown[0], names) if unknown else ""
        raise ValueError(
            f"{argument} = {list(chosen)}: give one or more of {', '.join(names)}{hint}"
        )
    return cast("tuple[Name, ...]", chosen)


def _hint(given: object, names: Sequence[str]) -> str:
    similar = get_close_matches(str(given), names, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


Number = TypeVar("Number", int, float, int | None, float | None)


def positive(argument: str, given: Number) -> Number:
    """Return a number that is positive, or None.

    Raises:
        TypeError: It is not a number.
        ValueError: It is 0 or less.
    """
    if not isinstance(given, int | float | None):
        raise TypeError(f"{argument} = {given!r} is a {type(given).__name__}: give a number")
    if given is not None and not given > 0:
        raise ValueError(f"{argument} = {given}: give a positive number")
    return given
