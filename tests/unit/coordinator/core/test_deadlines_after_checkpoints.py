"""Time in which a return waited for a checkpoint in flight does not count (`restore_deadlines.after_wait`)."""

from __future__ import annotations

from cedana_sched.model.orders import FindSnapshot
from cedana_sched.model.policy import CheckpointPolicy
from tests.unit.coordinator.core.core_builders import Told, victim
from tests.unit.coordinator.core.restore_stories import restore, start


def test_a_newer_format_is_waited_for_also_after_a_long_checkpoint() -> None:
    told = start(Told().running().preempt().frozen(), policy=CheckpointPolicy(restore_deadline_seconds=90))
    told.after(50).committed().killed()
    assert told.order(FindSnapshot).newer_seconds > 0, "the snapshot that was waited for is passed over at once"


def test_a_victim_that_is_still_being_deleted_costs_its_successor_no_snapshot() -> None:
    patient = CheckpointPolicy(deadline_seconds=600, restore_deadline_seconds=90)
    told = start(Told().running().preempt(victim(policy=patient)).frozen(), policy=patient)
    told.after(80).committed().killed(still_frozen=True).hold_is_released()  # its pod is deleted now
    told.after(11)  # which takes the kubelet a while
    assert "StartCold restore.w2" not in told.orders(), restore(told).failure
    told.after(5).ended()
    assert "FindSnapshot restore.w2" in told.orders()


def test_a_victim_that_is_deleted_slowly_leaves_its_successor_the_whole_deadline() -> None:
    policy = CheckpointPolicy(deadline_seconds=600, restore_deadline_seconds=90)
    told = start(Told().running().preempt(victim(policy=policy)).frozen(), policy=policy)
    told.after(5).committed().killed(still_frozen=True).hold_is_released()
    told.after(80).ended()  # its pod is gone
    assert "FindSnapshot restore.w2" in told.orders()
    told.after(11)
    assert "StartCold restore.w2" not in told.orders(), restore(told).failure
