"""A return is told by which digest the manifest that was committed is known again."""

from __future__ import annotations

from cedana_sched.adapter.contract import Starting
from cedana_sched.model.orders import Committed, RestoreSnapshot, SnapshotFound, Stage, Staged
from cedana_sched.model.records import Transfer
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, workload

DIGEST = "ab" * 32


def returning(generation: int = 1) -> Told:
    told = Told().running().preempt().frozen()
    told.tell(Committed("s1.w1.1", ref(1), Transfer(), manifest_digest=DIGEST)).killed().hold_is_released().ended()
    told.report(Starting(workload("w2"), MD, POLICY))
    return told.tell(SnapshotFound("restore.w2", ref(generation)))


def test_the_orders_of_a_return_say_what_was_committed() -> None:
    told = returning()
    assert told.order(Stage).manifest_digest == DIGEST
    assert told.tell(Staged("restore.w2")).order(RestoreSnapshot).manifest_digest == DIGEST


def test_a_coordinator_that_restarts_says_the_same() -> None:
    assert returning().restart().order(Stage).manifest_digest == DIGEST


def test_of_a_snapshot_that_no_record_made_nothing_is_said() -> None:
    assert returning(generation=7).order(Stage).manifest_digest == ""
