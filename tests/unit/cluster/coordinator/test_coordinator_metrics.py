"""The coordinator's metrics count what happens, once."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from cedana_sched.cluster.coordinator.metrics import MOST_REASONS, OTHER, CoordinatorMetrics
from cedana_sched.coordinator.core import PublishEvent, Severity
from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep, Transfer
from tests.unit.cluster.coordinator.test_object_journal import checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD, RESTORE


def _metrics() -> tuple[CoordinatorMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    return CoordinatorMetrics(registry), registry


def test_checkpoint_is_counted_when_it_is_over_and_only_once() -> None:
    metrics, registry = _metrics()
    dumping = replace(checkpoint(1, CheckpointStep.DUMPING), frozen_at=10.0)
    ready = replace(
        checkpoint(1, CheckpointStep.READY), frozen_at=10.0, committed_at=12.0, transfer=Transfer(100, 0, 0, 30)
    )
    for record in (dumping, ready, ready):
        metrics.on_records_saved([record], [])
    assert registry.get_sample_value("cedana_sched_checkpoints_total", {"adapter": "kueue", "phase": "Ready"}) == 1
    assert registry.get_sample_value("cedana_sched_checkpoint_frozen_duration_seconds_sum", {"adapter": "kueue"}) == 2
    assert registry.get_sample_value("cedana_sched_checkpoint_read_bytes_total", {"adapter": "kueue"}) == 100
    assert registry.get_sample_value("cedana_sched_checkpoint_stored_bytes_total", {"adapter": "kueue"}) == 30


def test_a_number_that_cannot_be_counts_nothing() -> None:
    metrics, registry = _metrics()
    ready = replace(checkpoint(1, CheckpointStep.READY), transfer=Transfer(-1, 0, 0, -1))
    for record in (checkpoint(1, CheckpointStep.DUMPING), ready):
        metrics.on_records_saved([record], [])
    assert registry.get_sample_value("cedana_sched_checkpoint_read_bytes_total", {"adapter": "kueue"}) == 0
    assert registry.get_sample_value("cedana_sched_checkpoint_stored_bytes_total", {"adapter": "kueue"}) == 0


def test_what_was_over_before_this_replica_led_is_not_counted_again() -> None:
    metrics, registry = _metrics()
    metrics.on_records_saved([checkpoint(1, CheckpointStep.READY)], [])
    assert registry.get_sample_value("cedana_sched_checkpoints_total", {"adapter": "kueue", "phase": "Ready"}) is None


def test_only_the_replica_that_coordinates_says_so_and_holds() -> None:
    metrics, registry = _metrics()
    assert registry.get_sample_value("cedana_sched_leader") == 0
    metrics.set_leading(leads=True)
    metrics.on_records_saved([replace(HOLD, step=HoldStep.HOLDING, released_at=None)], [])
    assert registry.get_sample_value("cedana_sched_leader") == 1
    metrics.set_leading(leads=False)
    assert registry.get_sample_value("cedana_sched_leader") == 0
    assert registry.get_sample_value("cedana_sched_evictions_held") == 0


def test_what_is_told_is_counted_by_reason_and_severity() -> None:
    metrics, registry = _metrics()
    for severity in (Severity.NORMAL, Severity.WARNING, Severity.WARNING):
        metrics.on_event(PublishEvent("ColdStart", "it began anew", severity))
    labels = {"reason": "ColdStart", "severity": "Warning"}
    assert registry.get_sample_value("cedana_sched_events_total", labels) == 2


def test_evictions_held_go_up_and_down() -> None:
    metrics, registry = _metrics()
    holding = replace(HOLD, step=HoldStep.HOLDING, released_at=None)
    metrics.on_records_saved([holding], [])
    assert registry.get_sample_value("cedana_sched_evictions_held") == 1
    metrics.on_records_saved([replace(holding, step=HoldStep.RELEASED, released_at=holding.created_at + 3)], [])
    assert registry.get_sample_value("cedana_sched_evictions_held") == 0
    labels = {"adapter": "kueue", "reason": "InCohortReclamation"}
    assert registry.get_sample_value("cedana_sched_eviction_hold_duration_seconds_sum", labels) == 3


def test_what_alerts_look_at_counts_from_nothing() -> None:
    """An increase from a series that was not there is none."""
    _, registry = _metrics()
    assert registry.get_sample_value("cedana_sched_restore_duration_seconds_count", {"outcome": "cold"}) == 0
    unsaved = {"reason": "EvictionReleased", "severity": "Warning"}
    assert registry.get_sample_value("cedana_sched_events_total", unsaved) == 0


def test_first_start_is_no_cold_start() -> None:
    metrics, registry = _metrics()
    waiting = replace(RESTORE, step=RestoreStep.STARTING_COLD, failure=None)
    metrics.on_records_saved([waiting], [])
    metrics.on_records_saved([replace(waiting, step=RestoreStep.RUNNING)], [])
    assert registry.get_sample_value("cedana_sched_restore_duration_seconds_count", {"outcome": "cold"}) == 0
    expected = replace(waiting, uid="another", failure="the store is empty")
    metrics.on_records_saved([expected], [])
    metrics.on_records_saved([replace(expected, step=RestoreStep.RUNNING)], [])
    assert registry.get_sample_value("cedana_sched_restore_duration_seconds_count", {"outcome": "cold"}) == 1


def test_return_is_measured_from_bind_to_first_instruction() -> None:
    metrics, registry = _metrics()
    continuing = replace(RESTORE, step=RestoreStep.RESTORING, cold=False, failure=None, running_at=None)
    metrics.on_records_saved([continuing], [])
    metrics.on_records_saved(
        [replace(continuing, step=RestoreStep.RUNNING, running_at=continuing.created_at + 3.5)], []
    )
    restored = {"outcome": "restored"}
    assert registry.get_sample_value("cedana_sched_restore_duration_seconds_count", restored) == 1
    assert registry.get_sample_value("cedana_sched_restore_duration_seconds_sum", restored) == 3.5


def test_reasons_that_a_tenant_makes_up_take_no_memory_without_end() -> None:
    """Who may write the status of a Workload says why it is evicted, and evicts it as often as he likes."""
    metrics, registry = _metrics()
    for number in range(3 * MOST_REASONS):
        made_up = replace(HOLD, uid=f"h{number}", reason=f"MadeUp{number}", released_at=HOLD.created_at + 1)
        metrics.on_records_saved([replace(made_up, step=HoldStep.HOLDING, released_at=None)], [])
        metrics.on_records_saved([made_up], [made_up])
    reasons = {
        sample.labels["reason"]
        for family in registry.collect()
        for sample in family.samples
        if family.name == "cedana_sched_eviction_hold_duration_seconds"
    }
    assert len(reasons) == MOST_REASONS + 1
    labels = {"adapter": "kueue", "reason": OTHER}
    assert registry.get_sample_value("cedana_sched_eviction_hold_duration_seconds_count", labels) == 2 * MOST_REASONS
