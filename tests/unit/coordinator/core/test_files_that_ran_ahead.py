"""Whose files may have run ahead of a snapshot, and what follows if they have."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import NodeLost, PublishEvent
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import (
    FailWorkload,
    RestoreFailed,
    RestoreSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StartCold,
    Thawed,
)
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure, OnVolumeChange
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload

COLD_START, FAIL = OnVolumeChange.COLD_START, OnVolumeChange.FAIL


def restoring(told: Told, generation: int = 1, policy: CheckpointPolicy = POLICY) -> Told:
    """Workload `w2`, on another node, is about to be restored."""
    told.report(Starting(workload("w2", "n2"), MD, policy))
    return told.tell(SnapshotFound("restore.w2", ref(generation)), Staged("restore.w2"))


def ran_on(told: Told) -> bool | None:
    return told.order(RestoreSnapshot).ran_on


def periodic() -> Told:
    told = Told().running().interval_passed(victim("w1")).frozen("p1.w1.1").committed("p1.w1.1")
    return told.tell(Thawed("p1.w1.1"))


def test_after_a_periodic_snapshot_the_workload_has_run_on() -> None:
    told = restoring(periodic().ended())
    assert ran_on(told)
    assert told.order(RestoreSnapshot).is_same_identity


def test_a_workload_that_was_killed_with_its_snapshot_has_not_run_on() -> None:
    told = Told().running().preempt().frozen().committed().killed().ended()
    assert not ran_on(restoring(told))


def test_a_workload_that_was_spared_has_run_on() -> None:
    told = Told().running().preempt().frozen().committed().killed("s1.w1.1", still_frozen=True)
    told.cancel().tell(Thawed("s1.w1.1")).ended()
    assert ran_on(restoring(told))


def test_a_workload_that_was_restored_from_the_snapshot_before_has_run_on() -> None:
    told = restoring(Told())
    assert not ran_on(told), "nothing is known of the snapshot"
    told.tell(RestoreSucceeded("restore.w2")).report(Ended("w2", "the pod has failed", failed=True))
    told.report(Starting(workload("w3", "n2"), MD, POLICY))
    assert ran_on(told.tell(SnapshotFound("restore.w3", ref(1)), Staged("restore.w3")))


def test_a_workload_whose_node_was_lost_while_it_was_restored_may_have_run_on() -> None:
    told = restoring(Told()).tell(NodeLost("n2"))
    told.report(Starting(workload("w3", "n1"), MD, POLICY))
    assert ran_on(told.tell(SnapshotFound("restore.w3", ref(1)), Staged("restore.w3")))


def test_the_snapshot_of_another_identity_is_not_the_workloads_own() -> None:
    other = SnapshotRef(MD.__class__(MD.namespace, "other", MD.index), 1)
    told = Told().report(Starting(workload("w2", "n2"), MD, POLICY, other))
    told.tell(SnapshotFound("restore.w2", other), Staged("restore.w2"))
    assert not told.order(RestoreSnapshot).is_same_identity


@pytest.mark.parametrize("on_restore_failure", list(OnRestoreFailure))
@pytest.mark.parametrize(("on_volume_change", "ordered"), [(COLD_START, "StartCold"), (FAIL, "FailWorkload")])
def test_the_policy_for_changed_files_decides_and_no_other(
    on_restore_failure: OnRestoreFailure, on_volume_change: OnVolumeChange, ordered: str
) -> None:
    update = {"on_volume_change": on_volume_change, "on_restore_failure": on_restore_failure}
    told = restoring(Told(), policy=POLICY.model_copy(update=update))
    told.tell(RestoreFailed("restore.w2", "/data/log has grown", files_changed=True))
    assert told.orders() == [f"{ordered} restore.w2"]
    (order,) = [one for one in told.sent() if isinstance(one, StartCold | FailWorkload)]
    assert "/data/log has grown" in (order.why or "")


@pytest.mark.parametrize("on_volume_change", [COLD_START, FAIL])
def test_another_failure_is_not_decided_by_it(on_volume_change: OnVolumeChange) -> None:
    told = restoring(Told(), policy=POLICY.model_copy(update={"on_volume_change": on_volume_change}))
    told.tell(RestoreFailed("restore.w2", "a PID is in use"))
    assert told.orders() == ["StartCold restore.w2"]


def test_an_agent_that_reports_changed_files_under_rewind_reports_a_failure() -> None:
    told = restoring(Told()).tell(RestoreFailed("restore.w2", "why", files_changed=True))
    assert told.orders() == ["StartCold restore.w2"]


def test_an_event_says_once_which_files_had_changed() -> None:
    told = restoring(Told()).tell(RestoreSucceeded("restore.w2", ("/data/log has grown: truncated",)))
    (event,) = [one for one in told.said if isinstance(one, PublishEvent) and one.kind == "FilesChanged"]
    assert event.text == "Files of name-of-w2 have changed since its snapshot: /data/log has grown: truncated"
    told.tell(RestoreSucceeded("restore.w2", ("/data/log has grown: truncated",)))
    assert "FilesChanged" not in told.tells()
