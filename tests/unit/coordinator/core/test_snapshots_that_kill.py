"""A snapshot whose program fails soon after each return is set aside: an older one, then what the policy says."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import NodeLost, PublishEvent
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import (
    FailWorkload,
    FindSnapshot,
    RestoreSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StartCold,
)
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure
from cedana_sched.model.records import Restore
from tests.unit.coordinator.core.core_builders import MD, Told, ref, victim, workload

POLICY = CheckpointPolicy()
CRASH = ("the pod has failed", True)


def start(
    told: Told, uid: str, policy: CheckpointPolicy = POLICY, requested_snapshot: SnapshotRef | None = None
) -> Told:
    return told.report(Starting(workload(uid), MD, policy, requested_snapshot))


def back(told: Told, uid: str, generation: int = 5, policy: CheckpointPolicy = POLICY) -> Told:
    """Another pod continues from this generation, and runs."""
    start(told, uid, policy)
    return told.tell(
        SnapshotFound(f"restore.{uid}", ref(generation)), Staged(f"restore.{uid}"), RestoreSucceeded(f"restore.{uid}")
    )


def saved() -> Told:
    """`w1` was preempted, committed as generation 1 and killed; nothing is left of it."""
    return Told().running().preempt().frozen().committed().killed().ended()


def crash(told: Told, uid: str, after: float = 2.0) -> Told:
    told.now += after
    return told.report(Ended(uid, *CRASH))


def twice(policy: CheckpointPolicy = POLICY) -> Told:
    """Generation 5 has killed its program twice."""
    told = Told()
    for uid in ("w1", "w2"):
        crash(back(told, uid, policy=policy), uid)
    return told


def restore(told: Told, uid: str) -> Restore:
    return told.core.registry.restores[f"restore.{uid}"]


def test_after_two_quick_deaths_an_older_generation_is_taken() -> None:
    told = start(twice(), "w3")
    assert told.order(FindSnapshot).avoiding == (5,)
    told.tell(SnapshotFound("restore.w3", ref(4)))
    assert restore(told, "w3").snapshot == ref(4)
    (text,) = [one.text for one in told.said if isinstance(one, PublishEvent)]
    assert text == (
        "Will resume name-of-w3 from md/0@4 on node n1, because md/0@5 failed within 60 s of being continued, 2 times"
    )


def test_one_quick_death_is_no_reason() -> None:
    told = crash(back(Told(), "w1"), "w1")
    assert start(told, "w2").order(FindSnapshot).avoiding == ()


def test_who_looks_at_the_job_is_told() -> None:
    told = twice()
    (one,) = [one for one in told.said if isinstance(one, PublishEvent)]
    assert (one.kind, str(one.severity), one.workload) == ("SnapshotQuarantined", "Warning", workload("w2"))
    assert one.text == (
        "md/0@5 failed within 60 s of being continued, 2 times; it is not restored again: name-of-w2's successor is"
        " continued from an older snapshot, and starts cold if there is none"
    )


def test_the_older_one_may_kill_too() -> None:
    told = twice()
    for uid in ("w3", "w4"):
        crash(back(told, uid, generation=4), uid)
    assert start(told, "w5").order(FindSnapshot).avoiding == (4, 5)


@pytest.mark.parametrize(
    ("action", "order"), [(OnRestoreFailure.COLD_START, StartCold), (OnRestoreFailure.FAIL, FailWorkload)]
)
@pytest.mark.parametrize("found", [None, ref(5)], ids=["nothing older", "an agent that avoids nothing"])
def test_without_an_older_one_the_policy_says_what_follows(
    action: OnRestoreFailure, order: type[StartCold | FailWorkload], found: SnapshotRef | None
) -> None:
    policy = CheckpointPolicy(on_restore_failure=action)
    told = start(twice(policy), "w3", policy).tell(SnapshotFound("restore.w3", found))
    why = "md/0@5 failed within 60 s of being continued, 2 times, and there is no older one"
    assert told.order(order).why == why


def test_the_very_snapshot_that_was_asked_for_is_refused_too() -> None:
    told = start(twice(), "w3", requested_snapshot=ref(5))
    assert told.order(StartCold).why == "md/0@5 failed within 60 s of being continued, 2 times"


def test_it_counts_over_restarts_and_long_pauses() -> None:
    told = crash(back(Told(), "w1"), "w1").restart()
    told.after(86_400).after(86_400).restart()
    crash(back(told, "w2"), "w2").after(86_400).restart()
    assert start(told, "w3").order(FindSnapshot).avoiding == (5,)


def test_it_is_forgotten_in_the_end() -> None:
    told = twice()
    for _ in range(10):
        told.after(86_400)
    assert told.core.records() == ()


def test_only_the_last_return_is_remembered_for_long() -> None:
    told = twice().after(7200)
    assert [one.uid for one in told.core.records()] == ["restore.w2"]


def test_a_crash_before_its_return_is_confirmed_counts() -> None:
    told = crash(back(Told(), "w1"), "w1")
    start(told, "w2").tell(SnapshotFound("restore.w2", ref(5)), Staged("restore.w2"))
    crash(told, "w2")
    assert start(told, "w3").order(FindSnapshot).avoiding == (5,)


def test_a_pod_that_was_deleted_before_it_began_hands_on_what_it_knew() -> None:
    told = back(Told(), "w1")
    start(told, "w2")
    crash(told, "w1").report(Ended("w2", "the pod was deleted"))
    crash(back(told, "w3"), "w3")
    assert start(told, "w4").order(FindSnapshot).avoiding == (5,)


def test_the_node_says_how_long_it_ran() -> None:
    """The coordinator was away when it crashed."""
    told = Told()
    for uid in ("w1", "w2"):
        back(told, uid)
        told.now += 3600
        told.report(Ended(uid, *CRASH, ran_seconds=3.0))
    assert start(told, "w3").order(FindSnapshot).avoiding == (5,)


def test_a_program_that_ran_for_long_clears_its_snapshot() -> None:
    told = crash(back(Told(), "w1"), "w1")
    crash(back(told, "w2"), "w2", after=61)
    crash(back(told, "w3"), "w3")
    assert start(told, "w4").order(FindSnapshot).avoiding == ()


@pytest.mark.parametrize("harmless", [Ended("w2", "the pod has succeeded"), Ended("w2", "the pod was deleted")])
def test_success_and_deletion_are_no_deaths(harmless: Ended) -> None:
    told = back(crash(back(Told(), "w1"), "w1"), "w2").report(harmless)
    assert start(told, "w3").order(FindSnapshot).avoiding == ()


def test_pods_that_end_while_they_are_started_lose_no_snapshot() -> None:
    """As where their kubelet ends meanwhile: the Job's next pod continues from the same one, however often."""
    told = saved()
    for uid in ("w2", "w3", "w4"):
        start(told, uid).tell(SnapshotFound(f"restore.{uid}", ref(1)), Staged(f"restore.{uid}"))
        assert told.order(RestoreSnapshot).restore_uid == f"restore.{uid}"
        told.report(Ended(uid, "the pod has failed"))
        assert (told.step(f"restore.{uid}"), restore(told, uid).quick_failures) == ("Ended", ())
    start(told, "w5")
    assert told.order(FindSnapshot).avoiding == ()
    told.tell(SnapshotFound("restore.w5", ref(1)), Staged("restore.w5"), RestoreSucceeded("restore.w5"))
    assert (told.step("restore.w5"), restore(told, "w5").cold, restore(told, "w5").snapshot) == (
        "Running",
        False,
        ref(1),
    )


def test_a_lost_node_is_no_death() -> None:
    told = back(crash(back(Told(), "w1"), "w1"), "w2").tell(NodeLost("n1"))
    assert start(told, "w3").order(FindSnapshot).avoiding == ()


def test_a_preemption_is_no_death() -> None:
    told = back(crash(back(Told(), "w1"), "w1"), "w2").preempt(victim("w2"), uid="s2")
    told.report(Ended("w2", *CRASH))
    assert restore(told, "w2").quick_failures == (ref(5),)


def test_who_starts_cold_kills_no_snapshot() -> None:
    told = start(twice(), "w3").tell(SnapshotFound("restore.w3"))
    crash(told, "w3")
    assert restore(told, "w3").quick_failures == (ref(5), ref(5))
