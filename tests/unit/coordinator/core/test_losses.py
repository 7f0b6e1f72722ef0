"""The loss of a workload with its node counts until a later one has run, however long that takes."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Ended, LastSaved, Starting
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import (
    FailWorkload,
    RestoreSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StartedCold,
    WorkloadFailed,
)
from cedana_sched.model.policy import CheckpointPolicy, OnNodeLoss
from cedana_sched.model.records import Restore
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload

HOUR = 3600.0
LOST = "node n1 was lost with name-of-w1"
COLD = POLICY.model_copy(update={"on_node_loss": OnNodeLoss.COLD_START})
FAIL = POLICY.model_copy(update={"on_node_loss": OnNodeLoss.FAIL})


def lost() -> Told:
    """`w1` ran, and was lost with its node."""
    told = Told().report(Starting(workload("w1"), MD, POLICY))
    told.tell(SnapshotFound("restore.w1", ref(3)), Staged("restore.w1"), RestoreSucceeded("restore.w1"))
    return told.tell(NodeLost("n1"))


def start(told: Told, uid: str, policy: CheckpointPolicy = COLD, saved: LastSaved | None = None) -> Told:
    return told.report(Starting(workload(uid, "n2"), MD, policy, saved=saved))


def loss_of(told: Told, uid: str) -> str | None:
    record = told.saved[f"restore.{uid}"]
    assert isinstance(record, Restore)
    return record.loss


@pytest.mark.parametrize("hours", [0, 2, 20])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_successor_that_never_ran_hands_it_on(hours: float, *, restarted: bool) -> None:
    told = start(lost(), "w2", POLICY)
    assert told.orders() == ["FindSnapshot restore.w2"]
    assert loss_of(told, "w2") == LOST
    told.ended("w2").after(hours * HOUR)
    if restarted:
        told.restart()
    assert start(told, "w3").orders() == ["StartCold restore.w3"]
    assert loss_of(told, "w3") == LOST


def test_it_is_handed_on_from_one_to_the_next_for_weeks() -> None:
    told = lost()
    for number in range(2, 9):
        assert start(told, f"w{number}", FAIL).order(FailWorkload).why == f"{LOST}, and the policy has onNodeLoss: Fail"
        told.tell(WorkloadFailed(f"restore.w{number}")).report(Ended(f"w{number}", "it failed"))
        told.after(5 * 24 * HOUR)
    assert start(told, "w9").orders() == ["StartCold restore.w9"]


def test_it_is_remembered_while_its_successor_waits() -> None:
    told = lost().report(Starting(workload("w2", "n2"), MD, COLD, predecessor="old may still run"))
    told.after(2 * HOUR)
    assert start(told.ended("w2"), "w3").orders() == ["StartCold restore.w3"]


def test_a_workload_that_has_started_cold_ends_it() -> None:
    told = start(lost(), "w2").tell(StartedCold("restore.w2")).ended("w2")
    assert start(told, "w3").orders() == ["FindSnapshot restore.w3"]
    assert loss_of(told, "w3") is None


def test_a_workload_that_was_restored_ends_it() -> None:
    told = start(lost(), "w2", POLICY).tell(SnapshotFound("restore.w2", ref(3)), Staged("restore.w2"))
    told.tell(RestoreSucceeded("restore.w2")).ended("w2")
    assert start(told, "w3").orders() == ["FindSnapshot restore.w3"]


def test_a_successor_that_is_lost_itself_is_a_loss_of_its_own() -> None:
    told = start(lost(), "w2", POLICY).tell(SnapshotFound("restore.w2", ref(3)), Staged("restore.w2"))
    told.tell(NodeLost("n2"))
    told.report(Starting(workload("w3", "n3"), MD, COLD))
    assert loss_of(told, "w3") == "node n2 was lost with name-of-w2"


def test_one_that_began_to_be_restored_and_was_deleted_hands_it_on() -> None:
    told = start(lost(), "w2", POLICY).tell(SnapshotFound("restore.w2", ref(3)), Staged("restore.w2"))
    assert told.order(RestoreSnapshot).snapshot == ref(3)
    assert start(told.ended("w2"), "w3").orders() == ["StartCold restore.w3"]


def test_a_snapshot_that_is_read_after_the_report_hides_nothing() -> None:
    reported = Starting(workload("w2", "n2"), MD, COLD, predecessor="old may still run", loss="it was lost")
    told = Told().report(reported)
    told.restart().report(Starting(workload("w2", "n2"), MD, COLD, newest_snapshot=ref(4)))
    assert told.orders() == ["StartCold restore.w2"]
    assert loss_of(told, "w2") == "it was lost"


def test_a_snapshot_of_a_workload_without_a_restore_ends_it_if_it_ran_since() -> None:
    own = LastSaved("w1", 5_000.0)
    assert start(lost(), "w2", COLD, own).orders() == ["StartCold restore.w2"]
    before = LastSaved("other", 900.0)
    assert start(lost(), "w2", COLD, before).orders() == ["StartCold restore.w2"]
    since = LastSaved("other", 5_000.0)
    assert start(lost(), "w2", COLD, since).orders() == ["FindSnapshot restore.w2"]


def test_a_snapshot_for_which_a_lost_restore_had_waited_is_no_run_since() -> None:
    told = Told().report(Starting(workload("w1"), MD, POLICY)).after(60)
    told.tell(SnapshotFound("restore.w1", ref(3)), Staged("restore.w1"), NodeLost("n1"))
    awaited = LastSaved("other", 1_030.0)
    assert start(told, "w2", COLD, awaited).orders() == ["StartCold restore.w2"]
    since = LastSaved("other", 1_070.0)
    assert start(told.ended("w2"), "w3", COLD, since).orders() == ["FindSnapshot restore.w3"]


def test_a_reported_loss_is_inherited_unless_a_later_snapshot_shows_another_run() -> None:
    def reported() -> Told:
        told = Told().report(Starting(workload("w2", "n2"), MD, POLICY, loss="it was lost"))
        return told.ended("w2").after(HOUR)

    assert start(reported(), "w3").orders() == ["StartCold restore.w3"]
    assert start(reported(), "w3", COLD, LastSaved("w1", 900.0)).orders() == ["StartCold restore.w3"]
    assert start(reported(), "w3", COLD, LastSaved("other", 2_000.0)).orders() == ["FindSnapshot restore.w3"]


def _beside_one_that_waits() -> Told:
    """`w1` waits for the end of an earlier one; `w2` comes later, is refused, and runs first."""
    told = Told().report(Starting(workload("w1"), MD, POLICY, predecessor="old may still run")).after(60)
    told.report(Starting(workload("w2", "n2"), MD, POLICY, refused="it names no snapshot")).after(60)
    return told.tell(StartedCold("restore.w2")).after(60)


def _run(told: Told, uid: str) -> Told:
    told.report(Starting(workload(uid), MD, POLICY))
    told.tell(SnapshotFound(f"restore.{uid}", ref(3)), Staged(f"restore.{uid}"), RestoreSucceeded(f"restore.{uid}"))
    return told.after(60)


def test_a_loss_before_the_last_run_does_not_count_though_the_lost_one_came_later() -> None:
    told = _run(_beside_one_that_waits().tell(NodeLost("n2")), "w1").ended("w1")
    assert start(told, "w3").orders() == ["FindSnapshot restore.w3"]
    assert loss_of(told, "w3") is None


def test_a_loss_of_the_last_that_ran_counts_though_another_one_came_later() -> None:
    told = _run(_beside_one_that_waits().ended("w2"), "w1").tell(NodeLost("n1"))
    assert start(told, "w3").orders() == ["StartCold restore.w3"]
    assert loss_of(told, "w3") == LOST


@pytest.mark.parametrize("answered", ["Committed", "Killed", "still frozen"])
def test_a_workload_that_was_saved_and_stopped_has_lost_nothing(answered: str) -> None:
    told = Told().running().preempt().frozen().committed()
    if answered != "Committed":
        told.killed(still_frozen=answered == "still frozen")
    told.tell(NodeLost("n1"))
    record = told.saved["restore.w1"]
    assert isinstance(record, Restore)
    assert (told.step("s1.w1.1"), record.lost_with_node) == ("Ready", False)
    assert start(told.hold_is_released(), "w2").orders() == ["FindSnapshot restore.w2"]


def test_whether_a_gang_is_saved_decides_about_those_that_were_lost_meanwhile() -> None:
    other = Identity("bio", "md", 1)

    def told() -> Told:
        both = Told().running().running("w2", other, node="n2")
        both.preempt(victim(gang="g"), victim("w2", other, gang="g", node="n2"))
        both.frozen("s1.w1.1", "s1.w2.1").committed().tell(NodeLost("n1"))
        return both

    saved = told()
    record = saved.saved["restore.w1"]
    assert isinstance(record, Restore)
    assert record.lost_with_node, "its gang may fail"
    saved.committed("s1.w2.1", identity=other)
    assert saved.step("s1.w1.1") == "Ready"
    assert start(saved, "w3").orders() == ["FindSnapshot restore.w3"]

    failed = told().failed("s1.w2.1").aborted("s1.w2.1").aborted("s1.w1.1")
    failed.after(200)
    assert failed.step("s1.w1.1") == "Failed"
    assert start(failed, "w3").orders() == ["StartCold restore.w3"]


def test_a_node_that_was_made_again_ends_only_what_began_before() -> None:
    told = Told().running().after(60).running("w2", Identity("bio", "other")).preempt()
    told.preempt(victim("w2", Identity("bio", "other")), uid="s2")
    told.tell(NodeLost("n1", began_before=told.now))
    assert (told.step("restore.w1"), told.step("restore.w2")) == ("Ended", "Running")
    assert told.step("s2.w2.1") == "Freezing"
