"""Two workloads that run under one identity: neither's memory is ever continued by the other."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Preempted, Starting
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.events import NodeLost
from cedana_sched.model.orders import Committed, RestoreSucceeded, SnapshotFound, Staged, Thawed
from cedana_sched.model.preemption import Signal, Verdict, Victim
from cedana_sched.model.records import Checkpoint, CheckpointStep, Restore, RestoreStep, Transfer
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload


def checkpoint(told: Told, uid: str) -> Checkpoint:
    return told.core.registry.checkpoints[uid]


def restore(told: Told, uid: str) -> Restore:
    return told.core.registry.restores[f"restore.{uid}"]


def warnings(told: Told) -> list[str]:
    return [one.text for one in told.said if isinstance(one, PublishEvent) and one.kind == "CheckpointFailed"]


@pytest.mark.parametrize("gang", [None, "g"])
def test_of_two_that_are_preempted_at_once_neither_is_saved(gang: str | None) -> None:
    told = Told().preempt(victim("w1", gang=gang), victim("w2", gang=gang, node="n2"))
    assert told.orders() == [], "nobody is frozen: whose memory it would be, nobody could say"
    hold = told.core.registry.holds["s1"]
    assert hold.verdicts == {"w1": Verdict.EVICT, "w2": Verdict.EVICT}
    assert "md/0 is already run by name-of-w2; give each of them an id of its own" in warnings(told)[0]


def test_evidence_of_wrong_memory() -> None:
    """Before: both were saved as md/0, and rank 0's successor continued with rank 1's memory."""
    told = Told().preempt(victim("rank0", gang="g"), victim("rank1", gang="g", node="n2"), uid="s")
    for uid in ("s.rank0.1", "s.rank1.1"):
        told.tell(Committed(uid, ref(1), Transfer()))
    assert all(one.snapshot is None for one in told.core.registry.checkpoints.values())


def test_the_second_is_not_saved_while_the_first_is() -> None:
    told = Told().preempt(victim("w1"), uid="s1").preempt(victim("w2", node="n2"), uid="s2")
    assert told.orders() == []
    assert checkpoint(told, "s2.w2.1").step is CheckpointStep.FAILED
    told.frozen("s1.w1.1").committed("s1.w1.1").killed("s1.w1.1")
    assert checkpoint(told, "s1.w1.1").snapshot == ref(1)


def test_the_second_is_not_saved_after_the_first_was() -> None:
    """It ran beside the first: its memory would be the newest of a name that is not its own."""
    told = Told()
    began = told.now - 100
    told.preempt(victim("w1"), uid="s1").frozen("s1.w1.1").committed("s1.w1.1").killed("s1.w1.1")
    second = Victim(workload("w2", "n2"), MD, POLICY, started_at=began)
    told.report(Preempted(Signal("s2", "kueue", (second,), "InCohortReclamation", told.now)))
    assert told.orders() == []
    assert "already run by name-of-w1" in warnings(told)[0]


def test_who_took_the_firsts_place_is_saved() -> None:
    told = Told().preempt(victim("w1"), uid="s1").frozen("s1.w1.1").committed("s1.w1.1").killed("s1.w1.1").ended("w1")
    told.report(Starting(workload("w2"), MD, POLICY))
    told.tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2"), RestoreSucceeded("restore.w2"))
    # its pod was bound, and its clock began, before the first was saved
    second = Victim(workload("w2"), MD, POLICY, started_at=told.now - 100)
    told.report(Preempted(Signal("s2", "kueue", (second,), "InCohortReclamation", told.now)))
    assert told.orders() == ["Freeze s2.w2.1"]


def test_who_starts_beside_one_that_runs_is_not_saved() -> None:
    told = Told().running("w1")
    told.report(Starting(workload("w2", "n2"), MD, POLICY)).after(POLICY.restore_deadline_seconds + 1)
    told.tell(RestoreSucceeded("restore.w2"))
    assert restore(told, "w2").cold or restore(told, "w2").step is RestoreStep.RUNNING
    told.preempt(victim("w2", node="n2"))
    assert told.orders() == []
    assert "already run by name-of-w1" in warnings(told)[0]


def test_whom_its_adapter_refuses_starts_cold_at_once_and_says_why() -> None:
    told = Told().running("w1")
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1")))
    assert told.orders() == ["StartCold restore.w2"]
    why = "md/0 is already run by name-of-w1; give each of them an id of its own"
    assert restore(told, "w2").failure == why


def test_who_is_refused_while_it_waits_waits_no_more() -> None:
    told = Told().running("w1").report(Starting(workload("w2", "n2"), MD, POLICY))
    assert restore(told, "w2").step is RestoreStep.WAITING
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1")))
    assert told.orders() == ["StartCold restore.w2"]
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1")))
    assert told.orders() == []


def test_who_takes_a_preempted_ones_place_waits_until_another_one_in_that_place_has_ended() -> None:
    """A scheduler that was asked twice has started two; it takes one of them back."""
    told = Told().running("w1")
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1"), continues=True))
    assert restore(told, "w2").step is RestoreStep.WAITING
    assert told.ended("w1").orders() == ["FindSnapshot restore.w2"]


def test_who_takes_a_preempted_ones_place_is_refused_beside_one_that_nothing_is_known_of() -> None:
    told = Told()
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1"), continues=True))
    assert "StartCold restore.w2" in told.orders()


def test_who_comes_beside_one_that_is_being_saved_waits_for_its_snapshot() -> None:
    told = Told().running("w1").preempt().frozen().committed()
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1")))
    assert restore(told, "w2").step is RestoreStep.WAITING
    assert told.killed().orders()[-1] == "FindSnapshot restore.w2"


@pytest.mark.parametrize("is_committed", [False, True])
def test_who_starts_beside_one_that_has_a_periodic_snapshot_is_refused(is_committed: bool) -> None:
    """Before: the second was restored from that snapshot while the first ran on."""
    told = Told().interval_passed(victim("w1")).frozen("p1.w1.1")
    if is_committed:
        told.committed("p1.w1.1").tell(Thawed("p1.w1.1"))
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1")))
    assert told.orders() == ["StartCold restore.w2"]
    told.tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2"))
    assert told.orders() == []
    assert restore(told, "w2").failure == "md/0 is already run by name-of-w1; give each of them an id of its own"


def test_who_starts_beside_one_that_was_not_evicted_after_all_is_refused() -> None:
    told = Told().preempt(victim("w1")).frozen().committed().killed(still_frozen=True)
    told.cancel().tell(Thawed("s1.w1.1")).orders()
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1")))
    assert told.orders() == ["StartCold restore.w2"]


def waiting_for_save_of_rival() -> Told:
    """The first has an older snapshot, and is being saved as the second starts."""
    told = Told().preempt(victim("w1"), uid="s1").frozen("s1.w1.1")
    told.report(Starting(workload("w2", "n2"), MD, POLICY, rival=workload("w1"), newest_snapshot=ref(1)))
    assert restore(told, "w2").step is RestoreStep.WAITING
    told.orders()
    return told


def test_who_waits_for_the_save_of_one_that_runs_on_after_its_failure_is_refused() -> None:
    """Before: the second was restored from the snapshot before, while the first ran on."""
    told = waiting_for_save_of_rival().failed("s1.w1.1").aborted("s1.w1.1")
    assert "FindSnapshot restore.w2" not in (orders := told.orders())
    assert "StartCold restore.w2" in orders
    assert restore(told, "w2").failure == "md/0 is already run by name-of-w1; give each of them an id of its own"


def test_who_waits_for_the_save_of_one_that_is_not_evicted_after_all_is_refused() -> None:
    told = waiting_for_save_of_rival().cancel("s1").aborted("s1.w1.1")
    assert "StartCold restore.w2" in told.orders()


def test_who_waits_for_a_save_that_is_tried_again_waits_on() -> None:
    told = waiting_for_save_of_rival().failed("s1.w1.1", retryable=True).aborted("s1.w1.1")
    assert {"FindSnapshot restore.w2", "StartCold restore.w2"}.isdisjoint(told.orders())
    assert restore(told, "w2").step is RestoreStep.WAITING


@pytest.mark.parametrize("end", ["it ended", "its node is lost"])
def test_who_waits_for_the_save_of_one_that_ends_is_restored_from_the_snapshot_before(end: str) -> None:
    told = waiting_for_save_of_rival()
    if end == "it ended":
        told.ended("w1").aborted("s1.w1.1")
    else:
        told.tell(NodeLost("n1"))
    assert "FindSnapshot restore.w2" in told.orders()


def test_victim_that_its_adapter_refuses_is_let_go_in_words() -> None:
    refused = Victim(workload("w1"), MD, POLICY, refused="md/0 is already run by another")
    told = Told().report(Preempted(Signal("s1", "kueue", (refused,), "InCohortReclamation", 1000.0)))
    assert told.orders() == []
    assert "md/0 is already run by another" in warnings(told)[0]
    assert told.core.registry.holds["s1"].verdicts == {"w1": Verdict.EVICT}
