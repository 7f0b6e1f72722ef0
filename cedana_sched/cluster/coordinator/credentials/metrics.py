"""Prometheus metrics of issuing credentials."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class CredentialMetrics:
    """Metrics of one replica; constructed only if credentials are issued."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.answers = Counter(
            "cedana_sched_credentials_requests_total",
            "Requests of agents for credentials of a namespace's snapshots, by the status of the answer.",
            ["status"],
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            "cedana_sched_credentials_certificate_expiry_timestamp_seconds",
            "When the certificate with which credentials are given expires, in seconds since the epoch.",
            registry=registry,
        )
        self.certificate_problems = Counter(
            "cedana_sched_credentials_certificate_problems_total",
            "Attempts to make, store or load that certificate, or to publish its authority, that failed.",
            registry=registry,
        )
