"""Whether a program has executed after one of its snapshots, whatever has expired or was lost since."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.coordinator.core.run_on import has_run_on
from cedana_sched.model.orders import (
    RestoreFailed,
    RestoreSnapshot,
    SnapshotFound,
    Staged,
    StageFailed,
    Thawed,
)
from cedana_sched.model.preemption import AfterCommit
from cedana_sched.model.records import Checkpoint, Restore
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, workload
from tests.unit.coordinator.core.restore_stories import restore, restored, saved, start

HOUR = 3600.0


def staging() -> Told:
    """`w2` fetches generation 1, of which `w1` was evicted."""
    return start(saved()).tell(SnapshotFound("restore.w2", ref(1)))


def resumed() -> Told:
    """Its node is ordered to restore it, and has not answered."""
    return staging().tell(Staged("restore.w2"))


def periodic() -> Told:
    told = Told().running().interval_passed().frozen("p1.w1.1").committed("p1.w1.1")
    return told.tell(Thawed("p1.w1.1"))


def spared() -> Told:
    return Told().running().preempt().frozen().committed().killed(still_frozen=True).cancel()


def shared() -> Told:
    frozen = Told().running().preempt().frozen().committed().killed(still_frozen=True)
    return frozen.preempt(after_commit=AfterCommit.LEAVE_RUNNING, uid="b1")


STORIES: list[tuple[str, Callable[[], Told], bool | None]] = [
    ("nothing was saved", Told, None),
    ("evicted", saved, False),
    ("evicted, and its successor waits", lambda: start(saved()), False),
    ("evicted, and its successor fetches", staging, False),
    ("fetched, and the successor ended before it was restored", lambda: staging().ended("w2"), False),
    ("periodic", periodic, True),
    ("evicted, and a snapshot was requested meanwhile", shared, False),
    ("its eviction is being cancelled", spared, True),
    ("its eviction was cancelled", lambda: spared().tell(Thawed("s1.w1.1")), True),
    ("its eviction was cancelled, and the workload has ended", lambda: spared().tell(Thawed("s1.w1.1")).ended(), True),
    ("being restored", resumed, True),
    ("the node was lost before it confirmed the restore", lambda: resumed().tell(NodeLost("n1")), True),
    ("could not be restored", lambda: resumed().tell(RestoreFailed("restore.w2", "bad size")), True),
    ("restored", restored, True),
    ("restored, and finished", lambda: restored().ended("w2"), True),
    ("restored, finished, and a new coordinator", lambda: restored().ended("w2").restart(), True),
]


@pytest.mark.parametrize(("story", "expected"), [pytest.param(s, e, id=name) for name, s, e in STORIES])
def test_whether_it_has_run_on(story: Callable[[], Told], *, expected: bool | None) -> None:
    told = story()
    assert has_run_on(told.core.registry, ref(1), workload("w9")) is expected
    known = told.core.registry.checkpoints.get("s1.w1.1")
    if known is not None:
        assert known.has_run_on is expected


@pytest.mark.parametrize("story", [saved, periodic, restored])
def test_a_report_says_so_for_records_that_have_expired(story: Callable[[], Told]) -> None:
    told = story().hold_is_released().ended("w1").ended("w2").after(3 * HOUR)
    assert has_run_on(told.core.registry, ref(1), workload("w9")) is None
    assert has_run_on(told.core.registry, ref(1), workload("w9"), [ref(1)])
    assert has_run_on(told.core.registry, ref(1), workload("w9"), [ref(2)]) is None


def test_its_checkpoint_says_so_once_the_restore_has_expired() -> None:
    told = restored().ended("w2")
    told.core.registry.forget(told.core.registry.restores["restore.w2"])
    assert has_run_on(told.core.registry, ref(1), workload("w9"))


def test_a_restore_of_an_older_coordinator_which_recorded_only_its_claim_says_so() -> None:
    told = restored()
    told.core.registry.update(replace(restore(told), resumed_snapshot=None))
    told.core.registry.forget(told.core.registry.checkpoints["s1.w1.1"])
    assert has_run_on(told.core.registry, ref(1), workload("w9"))
    told.ended("w2")
    assert has_run_on(told.core.registry, ref(1), workload("w9"))
    fetching = staging()
    fetching.core.registry.forget(fetching.core.registry.checkpoints["s1.w1.1"])
    assert has_run_on(fetching.core.registry, ref(1), workload("w9")) is None


def test_its_restore_says_so_once_the_checkpoint_was_deleted() -> None:
    told = restored().ended("w2")
    told.core.registry.forget(told.core.registry.checkpoints["s1.w1.1"])
    assert has_run_on(told.core.registry, ref(1), workload("w9"))


def test_the_checkpoint_of_another_generation_says_nothing() -> None:
    assert has_run_on(periodic().core.registry, ref(2), workload("w9")) is None


def test_the_node_learns_it_with_the_order_and_again_with_a_repeated_one() -> None:
    first = resumed()
    assert first.order(RestoreSnapshot).ran_on is False
    assert first.restart().order(RestoreSnapshot).ran_on is False, "it is the first to be restored from it, still"
    again = start(first.ended("w2"), "w3").tell(SnapshotFound("restore.w3", ref(1)), Staged("restore.w3"))
    assert again.order(RestoreSnapshot).ran_on is True
    later = start(periodic().ended("w1")).tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2"))
    assert later.order(RestoreSnapshot).ran_on is True


def test_a_pod_that_begins_again_learns_it() -> None:
    told = restored().report(Starting(workload("w2"), MD, POLICY, incarnation=1))
    told.tell(SnapshotFound("restore.w2.1", ref(1)), Staged("restore.w2.1"))
    assert told.order(RestoreSnapshot).ran_on is True


def test_it_learns_of_a_reported_one_also_behind_a_damaged_one() -> None:
    told = Told().report(Starting(workload("w2"), MD, POLICY, newest_snapshot=ref(4), ran_on=(ref(3),)))
    told.tell(SnapshotFound("restore.w2", ref(4)), StageFailed("restore.w2", "it is cut", damaged=True))
    told.tell(SnapshotFound("restore.w2", ref(3)), Staged("restore.w2"))
    assert told.order(RestoreSnapshot).ran_on is True
    unknown = Told().report(Starting(workload("w2"), MD, POLICY, newest_snapshot=ref(4)))
    unknown.tell(SnapshotFound("restore.w2", ref(4)), Staged("restore.w2"))
    assert unknown.order(RestoreSnapshot).ran_on is None


def test_records_show_it() -> None:
    told = resumed()
    checkpoint, record = told.saved["s1.w1.1"], told.saved["restore.w2"]
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.resumed
    assert checkpoint.after_commit is AfterCommit.STOP
    assert isinstance(record, Restore)
    assert (record.resumed_snapshot, record.ran_on) == (ref(1), False)
    failed = told.tell(RestoreFailed("restore.w2", "bad size")).report(Ended("w2", "it ended"))
    ended = failed.saved["restore.w2"]
    assert isinstance(ended, Restore)
    assert (ended.snapshot, ended.resumed_snapshot) == (None, ref(1))
