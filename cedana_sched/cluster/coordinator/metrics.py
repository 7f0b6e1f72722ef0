"""Prometheus metrics of the coordinator."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from cedana_sched.coordinator.core import PublishEvent, Severity
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    HoldStep,
    PreemptionHold,
    Record,
    Restore,
    RestoreStep,
)

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_COLD: Final = "cold"
_RESTORED: Final = "restored"
MOST_REASONS: Final = 32
"""Maximum distinct eviction reasons as label values: a tenant who writes scheduler objects can invent them."""
OTHER: Final = "other"


class CoordinatorMetrics:
    """Implements `coordinator.ports.EventListener`, and `journal.OnRecordsSaved`, which receives every saved record."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._announced = Counter(
            "cedana_sched_events_total",
            "What happened to workloads, by the reason of its Event.",
            ["reason", "severity"],
            registry=registry,
        )
        self._leads = Gauge("cedana_sched_leader", "1 while this replica coordinates.", registry=registry)
        self._holding = Gauge("cedana_sched_evictions_held", "Evictions that wait now.", registry=registry)
        self._held = Histogram(
            "cedana_sched_eviction_hold_duration_seconds",
            "From the signal of a preemption to its release.",
            ["adapter", "reason"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._checkpoints = Counter(
            "cedana_sched_checkpoints_total", "Checkpoints that are over.", ["adapter", "phase"], registry=registry
        )
        self._frozen = Histogram(
            "cedana_sched_checkpoint_frozen_duration_seconds",
            "From freeze to commit.",
            ["adapter"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._saved = Counter(
            "cedana_sched_checkpoint_read_bytes_total", "State that was saved.", ["adapter"], registry=registry
        )
        self._stored = Counter(
            "cedana_sched_checkpoint_stored_bytes_total", "What the store took of it.", ["adapter"], registry=registry
        )
        self._restores = Histogram(
            "cedana_sched_restore_duration_seconds",
            "From a pod's bind to its first instruction: restored, or cold although a snapshot was expected.",
            ["outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._refused = Counter(
            "cedana_sched_record_writes_rejected_total",
            "Writes of our objects that the API server did not take; they are tried again.",
            ["kind", "status"],
            registry=registry,
        )
        self._known: dict[str, str] = {}
        self._reasons: set[str] = set()
        for outcome in (_COLD, _RESTORED):  # alerts use increases, and a series that starts late shows none
            self._restores.labels(outcome)
        self._announced.labels("EvictionReleased", str(Severity.WARNING))

    def set_leading(self, *, leads: bool) -> None:
        """Set whether this replica leads."""
        self._leads.set(1 if leads else 0)
        if not leads:
            self._known.clear()
            self._holding.set(0)

    def on_event(self, event: PublishEvent) -> None:
        """See `coordinator.ports.EventListener`."""
        self._announced.labels(event.kind, str(event.severity)).inc()

    def count_rejected_write(self, kind: str, status: int) -> None:
        """Count a refused object write by HTTP status; 0: no response."""
        self._refused.labels(kind, str(status)).inc()

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`; checkpoints terminal before this replica led are not counted again."""
        for record in records:
            before = self._known.get(record.uid)
            if before is not None and before != record.step:
                self._observe_transition(record)
            self._known[record.uid] = record.step
        for record in forgotten:
            self._known.pop(record.uid, None)
        if records or forgotten:
            self._holding.set(sum(step == HoldStep.HOLDING for step in self._known.values()))

    def _observe_transition(self, record: Record) -> None:
        match record:
            case Checkpoint() if record.is_terminal:
                self._observe_terminal_checkpoint(record)
            case PreemptionHold() if record.released_at is not None:
                held = self._held.labels(record.adapter, self._limit_reason_label(record.reason))
                held.observe(max(record.released_at - record.created_at, 0.0))
            case Restore() if record.step is RestoreStep.RUNNING and record.running_at is not None:
                if not record.cold or record.failure is not None:  # else it was a plain first start
                    outcome = _COLD if record.cold else _RESTORED
                    self._restores.labels(outcome).observe(max(record.running_at - record.created_at, 0.0))
            case _:
                pass

    def _limit_reason_label(self, reason: str) -> str:
        if len(self._reasons) < MOST_REASONS:
            self._reasons.add(reason)
        return reason if reason in self._reasons else OTHER

    def _observe_terminal_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.labels(checkpoint.adapter, str(checkpoint.phase)).inc()
        if checkpoint.step is not CheckpointStep.READY:
            return
        self._saved.labels(checkpoint.adapter).inc(max(checkpoint.transfer.read_bytes, 0))
        self._stored.labels(checkpoint.adapter).inc(max(checkpoint.transfer.stored_bytes, 0))
        if checkpoint.frozen_at is not None and checkpoint.committed_at is not None:
            self._frozen.labels(checkpoint.adapter).observe(max(checkpoint.committed_at - checkpoint.frozen_at, 0.0))
