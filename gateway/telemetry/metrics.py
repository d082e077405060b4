"""Every metric of the gateway, each declared once. Names and units follow Prometheus' conventions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

__all__ = ["Metrics"]

# Seconds, up to the longest prompt: a 131K prefill takes 1,246 s on a Z100 (1,800 s by the pessimistic profile).
LONG_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 960, 1280, 1600, 1800, 2400, 3600)


class Metrics:
    """One registry per gateway, so that two gateways in one process (tests) do not share counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dcugate_requests",
            "Requests with a valid key that ended, by how they ended.",
            ("model", "purpose", "status"),
            registry=self.registry,
        )
        self.tokens = Counter(
            "dcugate_tokens",
            "Model tokens charged: input (uncached), cached, output.",
            ("model", "purpose", "kind"),
            registry=self.registry,
        )
        self.time_to_first_token = Histogram(
            "dcugate_time_to_first_token_seconds",
            "From the request's arrival to the first byte of the worker's answer body.",
            ("model",),
            buckets=LONG_BUCKETS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "dcugate_request_duration_seconds",
            "From the request's arrival to its end.",
            ("model",),
            buckets=LONG_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "dcugate_requests_in_flight", "Requests being served now.", ("model",), registry=self.registry
        )
        self.unauthorized = Counter(
            "dcugate_unauthorized_requests", "Requests without a valid key.", registry=self.registry
        )
        self.backend_ready = Gauge(
            "dcugate_backend_ready", "1 when the backend is ready for requests.", ("backend",), registry=self.registry
        )

    def exposition(self) -> bytes:
        """The text a scraper gets."""
        return generate_latest(self.registry)
