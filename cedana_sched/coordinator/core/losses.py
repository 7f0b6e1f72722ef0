"""The loss of an identity's last workload with its node: handed on from restore to restore until a workload has run.

`onNodeLoss` would otherwise depend on chance: on whether a successor ran before the record of the loss expired, or on
when a snapshot was read. A workload that was saved and stopped has lost nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.adapter.contract import LastSaved
from cedana_sched.coordinator.core.record_registry import RecordRegistry
from cedana_sched.model.records import Restore


def inherited_loss(registry: RecordRegistry, restore: Restore, saved: LastSaved | None = None) -> str | None:
    """Return the loss since which nothing has run under the identity; None if there is none.

    Args:
        registry: has the identity's restores; the last one that matters is retained longer than others.
        restore: the one that inherits.
        saved: the workload that was saved last; it counts if it has run without a restore.
    """
    if restore.loss is not None:
        return restore.loss
    for one in _latest_runs_first(registry, restore):
        if one.uid == restore.uid:
            continue
        has_run = one.running_at is not None or one.lost_with_node
        if has_run or one.loss is not None:
            if _has_run_since(one, saved):
                return None
            if not has_run:
                return one.loss
            lost = one.lost_with_node and one.workload.uid != restore.workload.uid
            return f"node {one.workload.node} was lost with {one.workload.name}" if lost else None
    return None


def is_loss_of_latest(registry: RecordRegistry, restore: Restore) -> bool:
    """Return whether a loss is known only by this restore: no later one has run, or has inherited it."""
    if not restore.lost_with_node and restore.loss is None:
        return False
    for one in _latest_runs_first(registry, restore):
        if one.uid == restore.uid:
            return True
        if one.running_at is not None or one.lost_with_node or one.loss is not None:
            return False
    return True


def clear_loss_of_saved(registry: RecordRegistry, workload_uid: str) -> None:
    """Record that a workload that was lost between commit and stop has lost nothing."""
    restore = registry.latest_restore_of_workload(workload_uid)
    if restore is not None and restore.lost_with_node:
        registry.update(replace(restore, lost_with_node=False))


def _latest_runs_first(registry: RecordRegistry, restore: Restore) -> list[Restore]:
    """Return all restores of its identity."""
    found = registry.restores_of_identity(restore.identity, restore.workload)
    return sorted(found, key=lambda one: one.run_time)[::-1]


def _has_run_since(one: Restore, saved: LastSaved | None) -> bool:
    """Whether a workload without a restore has run, and was saved, since this restore."""
    if saved is None or saved.workload_uid == one.workload.uid:
        return False
    return saved.began_at > one.run_time
