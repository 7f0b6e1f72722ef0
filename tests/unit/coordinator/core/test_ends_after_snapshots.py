"""The end of a workload is recorded in its last snapshot: its node may be removed, and the coordinator replaced."""

from __future__ import annotations

from cedana_sched.adapter.contract import Ended
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.model.orders import Thawed
from cedana_sched.model.records import Checkpoint
from tests.unit.coordinator.core.core_builders import Told
from tests.unit.coordinator.core.restore_stories import saved


def running_on(generations: int = 1) -> Told:
    """`w1` runs, and was saved periodically."""
    told = Told().running()
    for number in range(1, generations + 1):
        uid = f"p{number}.w1.1"
        told.interval_passed(uid=f"p{number}").frozen(uid).committed(uid, generation=number).tell(Thawed(uid))
    return told


def has_ended(told: Told, uid: str = "p1.w1.1") -> bool:
    record = told.saved[uid]
    assert isinstance(record, Checkpoint)
    return record.workload_ended


def test_the_end_is_recorded_in_the_last_snapshot_only() -> None:
    told = running_on(3)
    assert not has_ended(told, "p3.w1.1")
    told.report(Ended("w1", "the pod has failed", failed=True))
    assert [has_ended(told, f"p{number}.w1.1") for number in (1, 2, 3)] == [False, False, True]
    told.tell(NodeLost("n1"))
    assert has_ended(told.restart(), "p3.w1.1")


def test_a_loss_with_its_node_is_no_such_end() -> None:
    assert not has_ended(running_on().tell(NodeLost("n1")))
    assert not has_ended(running_on().report(Ended("w1", "the pod has failed", lost_with_node=True)))


def test_the_end_counts_also_while_it_is_thawed() -> None:
    told = Told().running().interval_passed().frozen("p1.w1.1").committed("p1.w1.1")
    assert has_ended(told.ended())


def test_a_workload_that_was_stopped_with_its_snapshot_has_not_run_on() -> None:
    assert not has_ended(saved().ended(), "s1.w1.1")
