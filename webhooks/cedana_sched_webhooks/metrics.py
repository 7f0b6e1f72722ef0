"""Prometheus metrics of the webhooks."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """All metrics of one replica, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "cedana_sched_webhook_requests_total",
            "Admission requests, by what was answered.",
            ("webhook", "decision"),
            registry=self.registry,
        )
        self.warnings = Counter(
            "cedana_sched_webhook_warnings_total",
            "Warnings to people about what they wrote.",
            ("webhook",),
            registry=self.registry,
        )
        self.strangers = Counter(
            "cedana_sched_webhook_unauthenticated_requests_total",
            "Calls that were not authenticated as the API server's, answered with 404.",
            registry=self.registry,
        )
        self.duration = Histogram(
            "cedana_sched_webhook_duration_seconds",
            "Time from the request's last byte to the answer.",
            ("webhook",),
            buckets=_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "cedana_sched_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served now expires, in seconds since the epoch.",
            registry=self.registry,
        )
        self.certificate_problems = Counter(
            "cedana_sched_webhook_certificate_problems_total",
            "Attempts to make, store or load a certificate, or to write caBundle, that failed.",
            registry=self.registry,
        )
