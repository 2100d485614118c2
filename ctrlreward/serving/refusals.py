"""Errors with which the server refuses or fails a request, each with its HTTP status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ctrlreward.columns import JSON_KEYS

# A scorer's message about an item begins with its column: "labels[3] = 'x' is …".
_COLUMN = re.compile(rf"\b({'|'.join(JSON_KEYS)})\[\d+\]")


class Refusal(Exception):
    """A request that is not scored.

    Attributes:
        status: HTTP status of the reply.
        retry_after: Seconds after which the client may ask again; None where that is no use.
    """

    status = 500
    retry_after: int | None = None

    def detail(self) -> Any:
        """Return the `detail` of the reply: a message, or a list of errors with their places."""
        return str(self)


class QueueFull(Refusal):
    """As many characters or requests are waiting as the server accepts.

    Args:
        waiting: Characters that are waiting or being scored.
        retry_after: Seconds until they should be scored.
    """

    status = 429

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} characters are waiting: ask again in {retry_after} s")
        self.retry_after = retry_after


class NotReady(Refusal):
    """The models are still being loaded, could not be loaded, or the server is ending.

    Args:
        state: `"loading"`, `"failed"` or `"draining"`.
        reason: Why the models could not be loaded.
    """

    status = 503
    retry_after: int | None = 1

    def __init__(self, state: str, reason: str = "") -> None:
        super().__init__(f"the server is not ready: {state}{': ' * bool(reason)}{reason}")
        self.state = state
        if state == "failed":  # asking again is no use
            self.status, self.retry_after = 500, None


class RejectedSamples(Refusal, ValueError):
    """A scorer rejects the samples of a request.

    Args:
        message: The scorer's message.
        place: Keys and indices from the body to what it rejects: `("samples", 3, "label")`.
    """

    status = 422

    def __init__(self, message: str, place: Sequence[str | int] = ("samples",)) -> None:
        super().__init__(message)
        self.place = tuple(place)

    @staticmethod
    def at(error: Exception, row: int | None) -> RejectedSamples:
        """Return the rejection of the sample at a row, with the column that the message names."""
        column = _COLUMN.search(str(error))
        place: list[str | int] = ["samples"]
        if row is not None:
            place += [row, *([JSON_KEYS[column[1]]] if column else [])]
        return RejectedSamples(str(error), place)

    def detail(self) -> Any:
        """Return the error as FastAPI reports one: a list with `loc`, `msg` and `type`."""
        return [{"loc": ["body", *self.place], "msg": str(self), "type": "value_error"}]


class ScorerFailed(Refusal):
    """A scorer raised an error that is not about the samples, such as one of memory."""
