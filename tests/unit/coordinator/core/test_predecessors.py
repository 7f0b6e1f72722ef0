"""A workload waits while an earlier one of its identity may still run, and the policy decides if that one was lost."""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import NodeLost, Persist, PublishEvent
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import FailWorkload, RestoreSucceeded, SnapshotFound, Staged
from cedana_sched.model.policy import OnNodeLoss
from cedana_sched.model.records import Restore
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, workload

WHY = "old may still run on node n1, which is not ready"


def starting(predecessor: str | None = WHY, *, refused: str | None = None) -> Starting:
    return Starting(workload("w1", "n2"), MD, POLICY, predecessor=predecessor, refused=refused)


def test_nothing_is_looked_for_while_its_predecessor_may_run() -> None:
    told = Told().report(starting())
    assert told.orders() == []
    assert told.tells() == [], "most waits are over at once"
    told.report(starting())
    assert told.orders() == []
    (text,) = [one.text for one in told.said if isinstance(one, PublishEvent)]
    assert text == f"name-of-w1 waits, so that nothing runs twice: {WHY}"
    assert told.report(starting()).said == []


def test_it_is_restored_once_the_predecessor_has_ended() -> None:
    told = Told().report(starting()).after(30).report(starting(None))
    assert told.orders() == ["FindSnapshot restore.w1"]
    told.tell(SnapshotFound("restore.w1", ref(3)))
    assert told.orders() == ["Stage restore.w1"]


def test_it_never_starts_beside_it_and_its_deadline_counts_from_then() -> None:
    told = Told().report(starting())
    for _ in range(20):
        told.after(POLICY.restore_deadline_seconds - 1)
        assert told.orders() == []
    assert told.step("restore.w1") == "Waiting"
    told.report(starting(None))
    record = told.saved["restore.w1"]
    assert isinstance(record, Restore)
    assert record.deadline == told.now + POLICY.restore_deadline_seconds


def test_the_next_coordinator_waits_as_well() -> None:
    assert Told().report(starting()).restart().orders() == []


def test_a_lookup_is_given_up_when_a_predecessor_shows() -> None:
    told = Told().report(starting(None))
    assert told.orders() == ["FindSnapshot restore.w1"]
    told.report(starting())
    told.tell(SnapshotFound("restore.w1", ref(3)))
    assert told.step("restore.w1") == "Waiting"


def test_a_refused_one_does_not_start_beside_it_either() -> None:
    told = Told().report(starting(refused="its annotation names no snapshot"))
    assert told.orders() == []
    assert told.report(starting(None, refused="its annotation names no snapshot")).orders() == ["StartCold restore.w1"]


def test_a_restart_of_a_waiting_one_tells_of_the_end_of_its_predecessor_as_well() -> None:
    told = Told().report(starting())
    told.report(Starting(workload("w1", "n2"), MD, POLICY, incarnation=1))
    assert told.orders() == ["FindSnapshot restore.w1"]


LOSS = "node n1 was lost with old"


def lost(policy: OnNodeLoss, *, predecessor: str | None = None, wanted: SnapshotRef | None = None) -> Told:
    given = POLICY.model_copy(update={"on_node_loss": policy})
    return Told().report(Starting(workload("w1", "n2"), MD, given, wanted, predecessor=predecessor, loss=LOSS))


def test_after_the_loss_of_a_node_the_policy_decides() -> None:
    assert lost(OnNodeLoss.RESTORE).orders() == ["FindSnapshot restore.w1"]
    assert lost(OnNodeLoss.COLD_START).orders() == ["StartCold restore.w1"]
    failed = lost(OnNodeLoss.FAIL)
    assert failed.order(FailWorkload).why == f"{LOSS}, and the policy has onNodeLoss: Fail"


def test_a_cold_start_after_the_loss_of_a_node_waits_as_well() -> None:
    assert lost(OnNodeLoss.COLD_START, predecessor=WHY).orders() == []


def test_a_snapshot_that_a_user_requests_is_restored_whatever_was_lost() -> None:
    assert lost(OnNodeLoss.FAIL, wanted=ref(2)).orders() == ["FindSnapshot restore.w1"]


def running() -> Told:
    told = Told().report(Starting(workload("w1", "n1"), MD, POLICY))
    return told.tell(SnapshotFound("restore.w1", ref(3)), Staged("restore.w1"), RestoreSucceeded("restore.w1"))


def is_lost(told: Told) -> bool:
    record = told.saved["restore.w1"]
    assert isinstance(record, Restore)
    return record.lost_with_node


def test_the_loss_of_its_node_is_recorded_and_remembered_for_the_next_one() -> None:
    told = running().tell(NodeLost("n1"))
    assert is_lost(told)
    told.after(2 * 3600)
    assert "restore.w1" in told.core.registry.restores
    assert is_lost(running().report(Ended("w1", "the pod was deleted", lost_with_node=True)))


def test_another_end_is_no_loss_nor_is_the_end_of_one_that_never_ran() -> None:
    ended = running().report(Ended("w1", "the pod was deleted"))
    assert not is_lost(ended)
    assert "restore.w1" not in ended.after(2 * 3600).core.registry.restores
    assert not is_lost(Told().report(Starting(workload("w1", "n1"), MD, POLICY)).tell(NodeLost("n1")))


def test_another_reason_to_wait_is_not_written() -> None:
    told = Told().report(starting())
    told.report(starting("another one may still run"))
    assert not [one for one in told.said if isinstance(one, Persist)]
    assert [one for one in told.report(starting(None)).said if isinstance(one, Persist)]


def test_the_next_coordinator_looks_for_nothing_before_a_refusal_is_repeated() -> None:
    refused = starting(refused="its annotation names no snapshot")
    told = Told().report(refused).restart()
    told.report(starting(None, refused="its annotation names no snapshot"))
    assert told.orders() == ["StartCold restore.w1"]
    looking = Told().report(starting(None)).restart()
    assert looking.orders() == [], "the next report may refuse it"
    assert looking.report(starting(None)).orders() == ["FindSnapshot restore.w1"]


def test_the_next_coordinator_starts_nothing_before_a_loss_is_repeated() -> None:
    given = POLICY.model_copy(update={"on_node_loss": OnNodeLoss.FAIL})
    report = Starting(workload("w1", "n2"), MD, given, loss=LOSS)
    told = Told().report(replace(report, predecessor=WHY)).restart()
    assert told.orders() == []
    assert told.report(report).orders() == ["FailWorkload restore.w1"]


def test_a_recovered_one_that_is_never_reported_ends_by_its_deadline() -> None:
    told = Told().report(starting(None)).restart()
    told.after(POLICY.restore_deadline_seconds)
    assert told.orders() == ["StartCold restore.w1"]
