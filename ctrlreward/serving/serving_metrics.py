"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ctrlreward.reward import RewardBatch

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServingMetrics:
    """Counters of one server, in a registry of its own; `requests` by route and status."""

    def __init__(self, pending: Callable[[], float]) -> None:
        own = self.registry = CollectorRegistry()
        routes = "Replies by route and status.", ("route", "status")
        self.requests = Counter("ctrlreward_requests", *routes, registry=own)
        self._samples = Counter("ctrlreward_samples", "Samples scored.", registry=own)
        self._failed = Counter("ctrlreward_failed_samples", "Samples failed.", registry=own)
        sizes = "Samples by batch."
        self._sizes = Histogram("ctrlreward_batch_samples", sizes, buckets=_SIZES, registry=own)
        waits, scoring = "Time of a request in the queue.", "Time of scoring a batch."
        self._waits = Histogram("ctrlreward_queue_wait_seconds", waits, registry=own)
        self._scoring = Histogram("ctrlreward_scoring_seconds", scoring, registry=own)
        requests = Gauge("ctrlreward_pending_requests", "Requests in the server.", registry=own)
        requests.set_function(pending)

    def batch(
        self, scored: Sequence[RewardBatch], waits: Sequence[float], samples: int, seconds: float
    ) -> None:
        """Count a batch: rewards of its requests, their waits, and its samples and seconds."""
        for each in scored:
            self._samples.inc(len(each.total))
            self._failed.inc(float(each.failed.sum()))
        for wait in waits:
            self._waits.observe(wait)
        self._sizes.observe(samples)
        self._scoring.observe(seconds)
