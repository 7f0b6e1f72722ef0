"""What Prometheus hears of the coordinator; names and units as its conventions ask."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from cedana_sched.coordinator.core import Tell


class CoordinatorMetrics:
    """Implements `coordinator.ports.Listener`: counts what is told."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._told = Counter(
            "cedana_sched_told_total",
            "What happened to workloads, by the reason of its Event.",
            ["reason", "severity"],
            registry=registry,
        )
        self._leads = Gauge("cedana_sched_leader", "1 while this replica coordinates.", registry=registry)

    def leads(self, *, leads: bool) -> None:
        """Whether this replica coordinates."""
        self._leads.set(1 if leads else 0)

    def told(self, tell: Tell) -> None:
        """See `coordinator.ports.Listener`."""
        self._told.labels(tell.kind, str(tell.severity)).inc()
