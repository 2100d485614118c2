"""Options of a reward that is served by replicas under Ray Serve."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RayServeOptions:
    """Cluster, resources and load of the replicas under Ray Serve.

    Args:
        address: `HOST:PORT` of a cluster's head, or "auto" for that of this machine; null starts a
            Ray on this machine, which ends with the command.
        num_cpus: CPU cores of a replica; its scorers use as many threads, at least one.
        num_gpus: GPUs of a replica, which sees no others; 0.5 puts two on one. With any, the
            scorers are on "cuda" unless `--device` is given.
        max_replicas: Most replicas; Ray starts further ones while each has more than
            `target_ongoing_requests` to answer, and ends them when load falls. Null keeps
            their number at `--replicas`.
        target_ongoing_requests: Requests that a replica should have, on average, where their
            number follows the load.
        max_ongoing_requests: Most requests that a replica holds, from which it makes its batches:
            as many as one batch has texts, or more. Ray's own default, 5, keeps batches at 5.
        max_queued_requests: Most requests that wait for a replica; above it the reply is 503. -1
            for no limit.

    Raises:
        ValueError: A number is out of its range.
    """

    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_replicas: int | None = None
    target_ongoing_requests: float = 64.0
    max_ongoing_requests: int = 512
    max_queued_requests: int = 16_384

    def __post_init__(self) -> None:
        for name in ("num_cpus", "target_ongoing_requests", "max_ongoing_requests"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"ray.{name} = {value}: give a positive number")
        if not 0 <= self.num_gpus < math.inf:
            raise ValueError(f"ray.num_gpus = {self.num_gpus}: give 0 or a positive number")
        if self.max_queued_requests < -1 or self.max_queued_requests == 0:
            raise ValueError(
                f"ray.max_queued_requests = {self.max_queued_requests}: give a positive number, "
                "or -1 for no limit"
            )
