"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServingMetrics:
    """Counters of one server, in a separate registry."""

    def __init__(self, pending: Callable[[], float], ready: Callable[[], bool]) -> None:
        registry = self._registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"ctrlreward_{name}", text, buckets=buckets, registry=registry)

        self._requests = Counter(
            "ctrlreward_requests",
            "Replies by route and HTTP status.",
            ("route", "status"),
            registry=registry,
        )
        self._samples = Counter("ctrlreward_samples", "Samples scored.", registry=registry)
        self._failed = Counter("ctrlreward_failed_samples", "Samples failed.", registry=registry)
        self._batch_requests = histogram("batch_requests", "Requests by batch.", _SIZES)
        self._batch_samples = histogram("batch_samples", "Samples by batch.", _SIZES)
        self._wait = histogram("queue_wait_seconds", "Time of a request in the queue.", _SECONDS)
        self._scoring = histogram("scoring_seconds", "Time of scoring a batch.", _SECONDS)
        for name, text, value in (
            ("pending_requests", "Requests waiting or being scored.", pending),
            ("ready", "1 while requests are accepted.", lambda: float(ready())),
        ):
            Gauge(f"ctrlreward_{name}", text, registry=registry).set_function(value)

    def replied(self, route: str, status: int) -> None:
        """Count a reply."""
        self._requests.labels(route, str(status)).inc()

    def scored(self, samples: int, failed: int) -> None:
        """Count the samples of a finished request."""
        self._samples.inc(samples)
        self._failed.inc(failed)

    def batch(self, requests: int, samples: int, waits: Sequence[float], seconds: float) -> None:
        """Count a batch, with the seconds that each request waited and the seconds of scoring."""
        self._batch_requests.observe(requests)
        self._batch_samples.observe(samples)
        self._scoring.observe(seconds)
        for wait in waits:
            self._wait.observe(wait)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
