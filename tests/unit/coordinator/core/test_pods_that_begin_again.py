"""A pod whose sandbox is made anew (its node rebooted, say) returns once more: another attempt, with its own record."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core import Core, Reported
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    FailWorkload,
    RestoreFailed,
    RestoreSucceeded,
    SnapshotFound,
    Stage,
    Staged,
    StartCold,
    StartedCold,
)
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Restore
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, workload

FAIL = CheckpointPolicy(restore_deadline_seconds=90, on_restore_failure=OnRestoreFailure.FAIL)


def start(told: Told, beginning: int = 0, uid: str = "w1", policy: CheckpointPolicy = POLICY) -> Told:
    return told.report(Starting(workload(uid), MD, policy, incarnation=beginning))


def restored() -> Told:
    told = start(Told()).tell(SnapshotFound("restore.w1", ref(5)), Staged("restore.w1"))
    return told.tell(RestoreSucceeded("restore.w1"))


def restore(told: Told, uid: str) -> Restore:
    return told.core.registry.restores[uid]


def test_restored_pod_that_begins_again_continues_from_the_newest_snapshot() -> None:
    told = start(restored(), 1)
    assert told.orders() == ["FindSnapshot restore.w1.1"]
    assert told.tells() == ["PodRestarted"]
    assert told.step("restore.w1") == "Ended"
    told.tell(SnapshotFound("restore.w1.1", ref(6)))
    assert told.order(Stage).snapshot == ref(6)
    told.tell(Staged("restore.w1.1"), RestoreSucceeded("restore.w1.1"))
    assert told.step("restore.w1.1") == "Running"
    assert told.tells() == ["Restored"]


def test_each_beginning_is_one_attempt() -> None:
    told = start(restored(), 1)
    assert start(told, 1).orders() == []
    assert start(told, 0).orders() == []
    told.tell(SnapshotFound("restore.w1.1", ref(5)), Staged("restore.w1.1"), RestoreSucceeded("restore.w1.1"))
    assert start(told, 2).orders() == ["FindSnapshot restore.w1.2"]


def test_coordinator_that_was_away_meanwhile_finds_the_attempt_and_does_not_repeat_it() -> None:
    told = start(start(restored(), 1).restart(), 1)
    assert [one.uid for one in told.core.registry.restores.values()] == ["restore.w1", "restore.w1.1"]
    assert restore(told, "restore.w1.1").incarnation == 1


def test_what_has_begun_cold_and_begins_again_continues_where_there_is_a_snapshot_now() -> None:
    told = start(Told()).tell(SnapshotFound("restore.w1"), StartedCold("restore.w1"))
    assert start(told, 1).tell(SnapshotFound("restore.w1.1", ref(1))).orders() == ["Stage restore.w1.1"]


@pytest.mark.parametrize(
    ("policy", "order", "said"), [(POLICY, "StartCold", "ColdStart"), (FAIL, "FailWorkload", "RestoreFailed")]
)
def test_attempt_that_fails_goes_as_the_policy_says(policy: CheckpointPolicy, order: str, said: str) -> None:
    told = start(Told(), policy=policy).tell(
        SnapshotFound("restore.w1", ref(5)), Staged("restore.w1"), RestoreSucceeded("restore.w1")
    )
    start(told, 1, policy=policy).tell(SnapshotFound("restore.w1.1", ref(5)), Staged("restore.w1.1"))
    told.tell(RestoreFailed("restore.w1.1", "CRIU refused"))
    assert told.orders() == [f"{order} restore.w1.1"]
    assert told.tells() == [said]


def test_restored_pod_of_which_no_snapshot_is_left_says_that_it_begins_cold() -> None:
    told = start(restored(), 1).tell(SnapshotFound("restore.w1.1"))
    assert (
        told.order(StartCold).why == "bio/md/0/main@5, from which it was continued before, is not in the store any more"
    )
    assert told.tells() == ["ColdStart"]


def test_late_answers_to_the_first_attempt_do_not_reach_the_second() -> None:
    told = start(restored(), 1).tell(RestoreFailed("restore.w1", "late"), StartedCold("restore.w1"))
    assert (told.step("restore.w1"), told.step("restore.w1.1")) == ("Ended", "Waiting")


def test_attempt_in_which_nothing_was_laid_yet_goes_on() -> None:
    """The restore container alone was started anew: what is fetched for it stays, and so does its deadline."""
    told = start(Told()).tell(SnapshotFound("restore.w1", ref(5)))
    deadline = restore(told, "restore.w1").deadline
    assert start(told, 1).orders() == []
    assert (told.step("restore.w1"), restore(told, "restore.w1").deadline) == ("Staging", deadline)
    told.tell(Staged("restore.w1"), RestoreSucceeded("restore.w1"))
    assert start(told, 1).orders() == []
    assert start(told, 2).orders() == ["FindSnapshot restore.w1.2"]


def test_attempt_that_was_restoring_is_made_anew() -> None:
    told = start(Told()).tell(SnapshotFound("restore.w1", ref(5)), Staged("restore.w1"))
    assert start(told, 1).orders() == ["FindSnapshot restore.w1.1"]


def test_second_attempt_waits_until_its_own_checkpoint_is_over() -> None:
    told = restored().preempt()
    assert start(told, 1).orders() == []
    told.failed().aborted()
    assert told.orders() == ["FindSnapshot restore.w1.1"]


def test_committed_pod_does_not_run_past_its_snapshot_although_its_node_rebooted() -> None:
    """The reboot has thawed it, so to say: it waits until it is deleted, or spared."""
    told = restored().preempt().frozen().committed(generation=6)
    start(told, 1)
    assert told.orders() == []
    told.killed()
    told.after(3600)
    assert [order for order in told.orders() if "restore" in order] == []


def test_forgotten_first_attempt_leaves_the_second_known() -> None:
    told = start(restored(), 1).tell(
        SnapshotFound("restore.w1.1", ref(5)), Staged("restore.w1.1"), RestoreSucceeded("restore.w1.1")
    )
    told.after(7200)
    assert list(told.core.registry.restores) == ["restore.w1.1"]
    found = told.core.registry.latest_restore_of_workload("w1")
    assert found is not None
    assert found.uid == "restore.w1.1"
    assert told.ended("w1").step("restore.w1.1") == "Ended"


@pytest.mark.parametrize("behind", [0.0, 40.0])
def test_latest_beginning_is_known_after_a_restart_whatever_the_clocks_say(behind: float) -> None:
    """Another coordinator made the second record, and its clock was behind."""
    told = start(restored(), 1)
    told.tell(SnapshotFound("restore.w1.1", ref(5)), Staged("restore.w1.1"), RestoreSucceeded("restore.w1.1"))
    records = {one.uid: one for one in told.core.records()}
    first, second = records.pop("restore.w1"), records.pop("restore.w1.1")
    assert isinstance(first, Restore)
    assert isinstance(second, Restore)
    second = replace(second, created_at=first.created_at - behind)
    core, _ = Core.recover([second, first, *records.values()], told.core.now)
    latest = core.registry.latest_restore_of_workload("w1")
    assert latest is not None
    assert latest.uid == "restore.w1.1"
    core.handle(Reported("kueue", Starting(workload("w1"), MD, POLICY, incarnation=1)), core.now)
    assert core.registry.restores["restore.w1.1"].step == "Running", "it is not restored twice"


def test_pod_that_was_evicted_and_that_nobody_deletes_does_not_wait_for_ever() -> None:
    """All its returns are over, and its node says that it still waits."""
    told = restored().preempt().frozen().committed(generation=6)
    start(told, 1)
    told.killed()
    assert told.step("restore.w1.1") == "Ended"
    assert start(told, 2).orders() == []
    told.after(89)
    assert told.step("restore.w1.2") == "Waiting"
    told.after(2)
    assert told.order(FailWorkload).why == (
        "not restored within 90 s: its eviction was released with bio/md/0/main@6, and it is still there"
    )
    assert told.tells() == ["RestoreFailed"]


WANTED = ref(1, Identity("bio", "md", 1))


@pytest.mark.parametrize(
    ("wanted", "rival", "why"),
    [
        (WANTED, None, "bio/md/1/main@1 belongs to replica 1, this is replica 0"),
        (None, workload("w2"), "md/0 is already run by name-of-w2; give each of them an id of its own"),
    ],
    ids=["forbidden", "a rival"],
)
def test_refused_attempt_does_not_begin_beside_its_own_checkpoint(
    wanted: SnapshotRef | None, rival: WorkloadRef | None, why: str
) -> None:
    """What was frozen before may be committed still, and then the pod is killed with all that it has done since."""
    told = Told().report(Starting(workload("w1"), MD, POLICY, wanted))
    told.tell(SnapshotFound("restore.w1"), StartedCold("restore.w1")).preempt().frozen()
    told.report(Starting(workload("w1"), MD, POLICY, wanted, rival, incarnation=1))
    assert told.orders() == []
    assert told.step("restore.w1.1") == "Waiting"
    told.failed().aborted()
    assert told.order(StartCold).why == why
