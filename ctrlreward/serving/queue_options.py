"""Sizes of the server's batches and queue, and the receiver of their measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class QueueOptions:
    """Sizes of the server's batches and of its queue.

    A reward has no single count of tokens, as each of its models has a tokenizer and templates of
    its own; characters are proportional to all of them. The models cut a batch by tokens again.

    Args:
        batch_characters: Most characters of a batch, all columns together. A larger request is a
            batch of its own.
        window: Seconds to wait for the next request while a batch gathers. Only where other
            requests were there a moment ago: a lone one is scored at once.
        waiting_characters: Most characters to hold; a request above it is refused (429).
        waiting_requests: Most requests to hold.

    Raises:
        ValueError: One of them is not positive; `window` may be 0.
    """

    batch_characters: int = 65_536
    window: float = 0.005
    waiting_characters: int = 16_000_000
    waiting_requests: int = 4096

    def __post_init__(self) -> None:
        for name in ("batch_characters", "waiting_characters", "waiting_requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give a positive number")
        if not 0 <= self.window < math.inf:
            raise ValueError(f"window = {self.window}: give seconds, 0 or more")


class QueueObserver(Protocol):
    """Receiver of the queue's measurements."""

    def scored(self, samples: int, failed: int) -> None:
        """Count the samples of a finished request."""

    def batch(self, requests: int, samples: int, waits: Sequence[float], seconds: float) -> None:
        """Count a batch, with the seconds that each request waited and those of scoring."""
