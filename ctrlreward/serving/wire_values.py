"""Values of the service's JSON: numbers that JSON lacks, and checks that name the item."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.arguments import did_you_mean
from ctrlreward.columns import shortened
from ctrlreward.scorers.base import Scores

# A score in JSON, which has no NaN (null here) and no infinity (a string here).
Number: TypeAlias = float | str | None

_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}
_MAX = sys.float_info.max
_KINDS = {dict: "dict_type", list: "list_type", str: "string_type", bool: "bool_type"}


class InvalidBody(ValueError):
    """A body that the contract does not allow; names the item.

    Args:
        message: One sentence with the fix.
        place: Keys and indices from the body to the item: `("samples", 3, "prefix")`.
        kind: Type of the error, as pydantic names them (`"missing"`, `"string_type"`).
    """

    def __init__(self, message: str, place: Sequence[str | int] = (), kind: str = "value_error"):
        super().__init__(message)
        self.place = tuple(place)
        self.kind = kind

    def detail(self) -> list[dict[str, Any]]:
        """Return the error as FastAPI reports one: a list with `loc`, `msg` and `type`."""
        return [{"loc": ["body", *self.place], "msg": str(self), "type": self.kind}]


def dumps(value: Any) -> bytes:
    """Return compact JSON in ASCII, which any text survives, even an unpaired surrogate."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def loads(content: bytes) -> Any:
    """Return the value of some JSON.

    Raises:
        ValueError: It is malformed; says where, without quoting it.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"malformed JSON at {place}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, nested too deeply, too long a number
        raise ValueError(f"malformed JSON: {type(error).__name__}") from None


def to_number(value: float) -> Number:
    """Return a float as JSON can hold it: null for NaN, `"Infinity"`, `"-Infinity"`.

    Finite numbers are exact: Python writes the shortest digits that read back as the same float64.
    """
    if math.isfinite(value):
        return float(value)
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def from_number(value: object, place: Sequence[str | int] = ()) -> float:
    """Return the float that `to_number` wrote.

    Raises:
        InvalidBody: It is something else.
    """
    if value is None:
        return math.nan
    if isinstance(value, str) and value in _INFINITIES:
        return _INFINITIES[value]
    # An integer may be too large for a float; NaN is written by some JSON libraries, read by ours.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX:
        raise InvalidBody(
            f"{shortened(value)} is not a score: give a number, null, 'Infinity' or '-Infinity'",
            place,
            "float_type",
        )
    return float(value)


def to_numbers(values: Scores) -> list[Number]:
    """Return an array as a list of what `to_number` writes."""
    return [to_number(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def from_numbers(given: object, place: Sequence[str | int]) -> Scores:
    """Return the array that `to_numbers` wrote.

    Raises:
        InvalidBody: It is no list, or an item is no score; names the item.
    """
    check(given, list, "a list of numbers", place)
    assert isinstance(given, list)
    return np.array([from_number(item, (*place, i)) for i, item in enumerate(given)], np.float64)


def checked_object(
    given: object,
    required: Sequence[str],
    optional: Sequence[str] = (),
    place: Sequence[str | int] = (),
) -> dict[str, Any]:
    """Return an object with exactly these keys.

    Raises:
        InvalidBody: It is no object, lacks a key, or has another one.
    """
    keys = ", ".join(map(repr, (*required, *optional)))
    check(given, dict, f"an object with the keys {keys}", place)
    assert isinstance(given, dict)
    for key in required:
        if key not in given:
            raise InvalidBody(f"{key!r} is missing: give {keys}", (*place, key), "missing")
    for key in given:
        if key not in required and key not in optional:
            refuse_key(key, (*required, *optional), place)
    return given


def refuse_key(key: str, known: Sequence[str], place: Sequence[str | int]) -> None:
    """Raise an `InvalidBody` for a key that an object must not have."""
    hint = did_you_mean(key, known, str) or f": give {', '.join(known)}"
    raise InvalidBody(f"{shortened(key)} is no key{hint}", (*place, key), "extra_forbidden")


def check(item: object, type_: type, wanted: str, place: Sequence[str | int]) -> None:
    """Raise an `InvalidBody` unless an item of a body has a type."""
    if not isinstance(item, type_):
        found = "null" if item is None else f"{shortened(item)}"
        raise InvalidBody(f"{found} is not {wanted}", place, _KINDS[type_])
