"""Requests of a judge to a server: limits, costs, outages, and replies kept on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tenacity

from ctrlreward.items import item_logger
from ctrlreward.scorers.model_servers import Busy

log = item_logger(__name__)

OutageChoice: TypeAlias = Literal["raise", "wait", "nan"]

_MINUTE = 60.0
_TRIES = 4  # of a request during an outage, unless it is waited for
_BYTES_OF_A_TOKEN = 4


@dataclass(frozen=True)
class JudgeUsage:
    """Requests, tokens and cost of a judge in this process so far.

    Attributes:
        requests: Requests sent, repeated ones included.
        cached: Replies that were read from the cache in place of a request.
        failed: Requests without a reply, which made a sample NaN.
        prompt_tokens: Tokens of the prompts, as the server counts them; 0 if it does not.
        completion_tokens: Tokens of the replies.
        cost: Cost of these tokens, in the currency of the judge's prices.
    """

    requests: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


@dataclass
class _Sent:
    """A request in the last minute."""

    at: float
    tokens: float


class Meter:
    """Delays requests by their limits, and counts them. A copy in another process starts at 0."""

    def __init__(
        self,
        requests_per_minute: int | None,
        tokens_per_minute: int | None,
        prompt_cost: float,
        completion_cost: float,
    ) -> None:
        self._limits = requests_per_minute, tokens_per_minute
        self._costs = prompt_cost, completion_cost
        self._lock = threading.Lock()
        self._sent: deque[_Sent] = deque()
        self._last = 0.0
        self._counts: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings."""
        return type(self), (*self._limits, *self._costs)

    @property
    def usage(self) -> JudgeUsage:
        """Requests, tokens and cost so far."""
        with self._lock:
            counts = self._counts.copy()
        prompt_cost, completion_cost = self._costs
        cost = counts["prompt_tokens"] * prompt_cost + counts["completion_tokens"] * completion_cost
        return JudgeUsage(**counts, cost=cost / 1e6)

    def count(self, name: str) -> None:
        """Count one of the `JudgeUsage` of that name."""
        with self._lock:
            self._counts[name] += 1

    def begin(self, body: Mapping[str, Any]) -> _Sent:
        """Wait until the limits allow a request, and count it with an estimate of its tokens."""
        written = sum(len(each["content"].encode()) for each in body["messages"])
        self.count("requests")
        with self._lock:
            sent = self._reserve(written / _BYTES_OF_A_TOKEN + body["max_tokens"])
        while (left := sent.at - time.monotonic()) > 0:
            time.sleep(left)
        return sent

    def _reserve(self, tokens: float) -> _Sent:
        """Return a request at the earliest time at which both limits hold, after earlier ones."""
        requests, most = self._limits
        at = max(time.monotonic(), self._last)
        while self._sent:
            oldest = self._sent[0].at + _MINUTE
            full = requests is not None and len(self._sent) >= requests
            full = full or (most is not None and sum(s.tokens for s in self._sent) + tokens > most)
            if oldest > at and not full:
                break
            at = max(at, oldest)
            self._sent.popleft()
        self._last, sent = at, _Sent(at, tokens)
        if self._limits != (None, None):
            self._sent.append(sent)
        return sent

    def end(self, sent: _Sent, reply: object) -> None:
        """Count the tokens of a reply, in place of the estimate."""
        usage = reply.get("usage") if isinstance(reply, dict) else None
        given = usage if isinstance(usage, dict) else {}
        tokens = {key: given.get(key) for key in ("prompt_tokens", "completion_tokens")}
        counted = {key: count for key, count in tokens.items() if isinstance(count, int)}
        with self._lock:
            sent.tokens = sum(counted.values()) or sent.tokens
            self._counts.update(counted)


class Outage:
    """Time since a server stopped answering, shared by the requests of one call of `score`."""

    def __init__(self, choice: OutageChoice, budget: float) -> None:
        self._choice = choice
        self._budget = budget
        self._since: float | None = None
        self.errors: list[ConnectionError] = []  # of requests that failed

    def stop(self, state: tenacity.RetryCallState) -> bool:
        """Return whether to give up a request, as a `stop` of tenacity."""
        assert state.outcome is not None
        error, now = state.outcome.exception(), time.monotonic()
        if self._since is None:
            self._since = now
            if self._choice == "wait":
                log.warning("%s; trying again for up to %g s", error, self._budget)
        limited = isinstance(error, Busy) and error.limited  # the server answers
        enough = self._choice != "wait" and not limited and state.attempt_number >= _TRIES
        return enough or now - self._since + state.upcoming_sleep > self._budget

    def answered(self) -> None:
        """End the outage."""
        self._since = None

    @property
    def over_budget(self) -> bool:
        """Whether it has lasted so long that a request is not worth a try."""
        return self._since is not None and time.monotonic() - self._since > self._budget


class ReplyCache:
    """Replies on disk by the content of their requests, for any number of processes."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).expanduser() / "replies.sqlite3"

    @staticmethod
    def key(body: Mapping[str, Any]) -> str:
        """Return the SHA-256 of a request."""
        content = json.dumps(body, sort_keys=True)  # ASCII, as an unpaired surrogate has no UTF-8
        return hashlib.sha256(content.encode()).hexdigest()

    def get(self, key: str) -> str | None:
        """Return the text of a reply, None if there is none."""
        with self._opened() as database:
            row = database.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, reply: str) -> None:
        """Store the text of a reply; it is on disk when this returns."""
        with self._opened() as database:
            database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, reply))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection of this thread alone; other processes are waited for."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Closed at the end, after one transaction.
            with closing(sqlite3.connect(self.path, timeout=_MINUTE)) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT)"
                )
                yield database
        except sqlite3.Error as error:
            raise OSError(
                f"the cache {self.path} can't be used: {error}. Delete it, or use another folder."
            ) from error
