"""Prometheus metrics of the extender."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """All metrics of one replica, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "cedana_sched_volcano_extender_requests_total",
            "Calls of the scheduler, by its action and what was answered.",
            ("action", "decision"),
            registry=self.registry,
        )
        self.strangers = Counter(
            "cedana_sched_volcano_extender_unauthenticated_requests_total",
            "Calls without the secret part of the address, answered with 404.",
            registry=self.registry,
        )
        self.address_problems = Counter(
            "cedana_sched_volcano_extender_address_problems_total",
            "Attempts to read or write the Secret with the secret part of the address that failed.",
            registry=self.registry,
        )
        self.duration = Histogram(
            "cedana_sched_volcano_extender_duration_seconds",
            "Time from a call's last byte to the answer; the scheduler does nothing else meanwhile.",
            ("action",),
            buckets=_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.evictees = Counter(
            "cedana_sched_volcano_extender_evictees_total",
            "Pods that the scheduler named, by whether it may evict them now.",
            ("action", "allowed"),
            registry=self.registry,
        )
        self.preemptors = Gauge(
            "cedana_sched_volcano_extender_preemptors",
            "Pending pods that requested room within the last half minute.",
            registry=self.registry,
        )
