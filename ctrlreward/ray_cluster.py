"""Ray: the resources of replicas, and the connection to a cluster."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ctrlreward.arguments import not_negative, positive
from ctrlreward.extras import import_extra

_OBJECT_STORE = 256 * 2**20  # bytes of a Ray that we start: requests are small


@dataclass(frozen=True)
class RayServeOptions:
    """Cluster, resources and load of the replicas under Ray Serve.

    Args:
        address: `HOST:PORT` of a cluster's head, or "auto" for the cluster of this machine; null
            starts a Ray on this machine, which ends with the command.
        num_cpus: CPU cores of a replica; its scorers use as many threads, at least one.
        num_gpus: GPUs of a replica, the only visible ones; 0.5 puts two replicas on one. With any,
            the scorers are on "cuda" unless `--device` is set.
        max_replicas: Most replicas; Ray starts further ones while each has more than
            `target_ongoing_requests` pending, and ends them when load falls. Null keeps
            their number at `--replicas`.
        target_ongoing_requests: Average requests per replica if their number follows the load.
        max_ongoing_requests: Most pending requests of a replica, from which it makes its batches:
            as many as one batch has texts, or more.
        max_queued_requests: Most requests that wait for a replica; above it the reply is 503. -1
            for no limit.
    """

    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_replicas: int | None = None
    target_ongoing_requests: float = 64.0
    max_ongoing_requests: int = 512
    max_queued_requests: int = 16_384

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            not_negative(f"ray.{name}", getattr(self, name))
        if not (self.num_cpus or self.num_gpus):
            raise ValueError("ray.num_cpus and num_gpus are both 0, must have CPUs, GPUs or both")
        for name in ("target_ongoing_requests", "max_ongoing_requests"):
            positive(f"ray.{name}", getattr(self, name))
        queued, must = self.max_queued_requests, "must be positive, or -1 for no limit"
        if queued < 1 and queued != -1:
            raise ValueError(f"ray.max_queued_requests {must}, got {queued}")


def connect_ray(address: str | None, own: dict[str, Any], **options: Any) -> bool:
    """Join a cluster or start Ray on this machine; return False if Ray is connected already.

    A Ray that is started here listens on the loopback address, has no dashboard and sends no usage
    statistics; `ray.init` takes the options in addition to ours.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        # Read when Ray is imported: its processes listen on the loopback address, not on all.
        # `_node_ip_address` does not work, since Ray resolves 127.0.0.1 to another address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE, **own}
    ray = import_extra("ray", "--engine ray")
    place = urlsplit(f"//{(address or '').removeprefix('ray://')}")
    if place.port:  # Ray itself repeats for minutes
        try:
            socket.create_connection((place.hostname, place.port), timeout=10).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from None
    if ray.is_initialized():
        return False
    ray.init(address or "local", logging_level=logging.ERROR, **options)
    return True
