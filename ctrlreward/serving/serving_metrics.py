"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ctrlreward.reward import RewardBatch

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServingMetrics:
    """Counters of one server, in a registry of its own; `requests` by route and status."""

    def __init__(self, pending: Callable[[], float], ready: Callable[[], bool]) -> None:
        own = self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"ctrlreward_{name}", text, buckets=buckets, registry=own)

        self.requests = Counter(
            "ctrlreward_requests", "Replies by route and status.", ("route", "status"), registry=own
        )
        self._samples = Counter("ctrlreward_samples", "Samples scored.", registry=own)
        self._failed = Counter("ctrlreward_failed_samples", "Samples failed.", registry=own)
        self._batch_samples = histogram("batch_samples", "Samples by batch.", _SIZES)
        self._wait = histogram("queue_wait_seconds", "Time of a request in the queue.", _SECONDS)
        self._scoring = histogram("scoring_seconds", "Time of scoring a batch.", _SECONDS)
        waiting = Gauge("ctrlreward_pending_requests", "Requests in the server.", registry=own)
        waiting.set_function(pending)
        accepting = Gauge("ctrlreward_ready", "1 while requests are accepted.", registry=own)
        accepting.set_function(lambda: float(ready()))

    def batch(
        self, scored: Sequence[RewardBatch], waits: Sequence[float], samples: int, seconds: float
    ) -> None:
        """Count a batch: rewards of its requests, their waits, and its samples and seconds."""
        for each in scored:
            self._samples.inc(len(each.total))
            self._failed.inc(float(each.failed.sum()))
        for wait in waits:
            self._wait.observe(wait)
        self._batch_samples.observe(samples)
        self._scoring.observe(seconds)
