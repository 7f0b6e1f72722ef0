"""A snapshot of a called-off checkpoint that nobody can have removed is passed over, however late its workload returns.

Else a gang would come back from several moments: the member whose node was lost from that snapshot, the others from the
ones before.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    FindSnapshot,
    RemovalFailed,
    SnapshotFound,
    SnapshotRemoved,
    StartedCold,
)
from tests.unit.coordinator.core.core_builders import POLICY, Told, victim, workload

RANK0, RANK1 = Identity("bio", "mpi", 0), Identity("bio", "mpi", 1)
VICTIMS = (victim("w1", RANK0, gang="mpi"), victim("w2", RANK1, gang="mpi", node="n2"))
PAIR = "s1.w1.1", "s1.w2.1"


def dumping() -> Told:
    """A gang that is being dumped on two nodes."""
    told = Told().running("w1", RANK0).running("w2", RANK1, node="n2")
    return told.preempt(*VICTIMS).frozen(*PAIR)


def lost_in_its_dump() -> Told:
    return dumping().tell(NodeLost("n1")).aborted("s1.w2.1").ended("w2")


def lost_in_its_abort() -> Told:
    told = dumping().committed("s1.w1.1", identity=RANK0).failed("s1.w2.1").tell(NodeLost("n1"))
    return told.aborted("s1.w2.1").ended("w2")


def lost_after_it_was_silent() -> Told:
    told = dumping().committed("s1.w1.1", identity=RANK0).failed("s1.w2.1").aborted("s1.w2.1").ended("w2")
    return told.after(60).after(120).tell(NodeLost("n1"))


def lost_after_its_commit() -> Told:
    told = dumping().committed("s1.w1.1", identity=RANK0).tell(NodeLost("n1")).failed("s1.w2.1")
    return told.aborted("s1.w2.1").ended("w2").after(60).after(120)


def silent() -> Told:
    told = dumping().committed("s1.w1.1", identity=RANK0).failed("s1.w2.1").aborted("s1.w2.1")
    return told.after(60).after(120).ended("w1").ended("w2")


def not_removed() -> Told:
    """Its node has thawed it, and the store has not let it remove what it had committed unheard."""
    told = dumping().failed("s1.w2.1").aborted("s1.w2.1").tell(Aborted("s1.w1.1", cleanup_pending=True))
    return told.ended("w1").ended("w2")


ALL = [not_removed, lost_in_its_dump, lost_in_its_abort, lost_after_it_was_silent, lost_after_its_commit, silent]


def much_later(told: Told) -> Told:
    told.hold_is_released()
    for _ in range(12):
        told.after(3600)
    return told


def finding(told: Told) -> FindSnapshot:
    told.report(Starting(workload("w3", "n3"), RANK0, POLICY))
    return told.order(FindSnapshot)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("left", ALL)
def test_what_may_be_left_in_the_store_is_passed_over_hours_later(left: Callable[[], Told], restarts: bool) -> None:
    told = much_later(left())
    if restarts:
        told = much_later(told.restart())
    assert "s1.w1.1" in finding(told).excluding
    assert "s1.w2.1" not in told.core.registry.checkpoints, "its node has said that nothing is left"


def test_node_that_comes_back_is_ordered_to_remove_it_and_then_it_is_forgotten() -> None:
    told = much_later(lost_in_its_dump())
    assert any(isinstance(order, Abort) for order in told.sent())
    told = much_later(told.aborted("s1.w1.1"))
    assert told.core.registry.checkpoints == {}
    assert finding(told).excluding == ()


def test_node_that_has_left_it_is_ordered_to_remove_it_until_it_has() -> None:
    told = dumping().failed("s1.w2.1").aborted("s1.w2.1").tell(Aborted("s1.w1.1", cleanup_pending=True))
    assert told.orders() == [], "it has just tried"
    assert told.verdicts() == {"w1": "Evict", "w2": "Evict"}, "its eviction does not wait for the store"
    assert told.after(1).orders() == ["DiscardCancelled s1.w1.1"]
    assert told.tell(RemovalFailed("s1.w1.1", "the store is down")).orders() == []
    assert told.after(2).orders() == ["DiscardCancelled s1.w1.1"]
    told = much_later(told.tell(SnapshotRemoved("s1.w1.1")).ended("w1").ended("w2"))
    assert told.core.registry.checkpoints == {}


def test_node_that_was_silent_and_has_left_it_is_not_ordered_to_thaw_again() -> None:
    told = silent().tell(Aborted("s1.w1.1", cleanup_pending=True))
    assert told.orders() == []
    assert told.after(1).orders() == ["DiscardCancelled s1.w1.1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_another_attempt_begins_whatever_the_one_before_has_left(restarts: bool) -> None:
    """The store that failed the dump lets nothing be removed either; it may be back long before that is tried again."""
    told = Told().running().preempt().frozen().failed(retryable=True).tell(Aborted("s1.w1.1", cleanup_pending=True))
    if restarts:
        told.restart()
    assert "Freeze s1.w1.2" in told.after(1).orders()
    told.frozen("s1.w1.2")
    if restarts:
        assert told.restart().orders() == ["DiscardCancelled s1.w1.1", "Dump s1.w1.2"], (
            "nothing thaws what is frozen anew"
        )
    assert told.committed("s1.w1.2", 2).orders() == ["Kill s1.w1.2"]


def test_a_later_preemption_is_saved_where_the_store_lets_nobody_delete() -> None:
    told = (
        Told().running().preempt().frozen().cancel().tell(Aborted("s1.w1.1", cleanup_pending=True)).hold_is_released()
    )
    for _ in range(3):
        told.after(3600).tell(RemovalFailed("s1.w1.1", "the store denies it"))
    assert "Freeze s2.w1.1" in told.preempt(uid="s2").orders()


def test_nothing_is_left_of_what_was_never_frozen() -> None:
    told = Told().running().preempt().cancel().tell(Aborted("s1.w1.1", cleanup_pending=True))
    assert not told.core.registry.checkpoints["s1.w1.1"].unconfirmed


def test_it_is_forgotten_once_there_is_a_newer_snapshot() -> None:
    told = much_later(lost_in_its_dump())
    finding(told)
    told.tell(SnapshotFound("restore.w3"), StartedCold("restore.w3")).preempt(victim("w3", RANK0, node="n3"), uid="s2")
    told.frozen("s2.w3.1").committed("s2.w3.1", 2, RANK0).killed("s2.w3.1").hold_is_released("s2").ended("w3")
    much_later(told)
    assert told.core.registry.checkpoints == {}


def test_node_that_is_lost_before_it_dumps_leaves_nothing() -> None:
    told = Told().running("w1", RANK0).running("w2", RANK1, node="n2").preempt(*VICTIMS)
    much_later(told.tell(NodeLost("n1")).aborted("s1.w2.1"))
    assert told.core.registry.checkpoints == {}
