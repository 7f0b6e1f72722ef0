"""A namespace that is made again under its name begins with nothing: what the core remembers is of the one before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Preempted, Starting
from cedana_sched.coordinator.core import NamespaceCorrected, NodeLost
from cedana_sched.model.orders import (
    ApplyRetention,
    Committed,
    FindSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Stage,
    Staged,
    StartCold,
)
from cedana_sched.model.preemption import Signal, WorkloadRef
from cedana_sched.model.records import Checkpoint, PreemptionHold, Transfer
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload

BEFORE = "0a1b2c3d-0000-4000-8000-0000000000f1"
NOW = "0a1b2c3d-0000-4000-8000-0000000000f2"
DIGEST = "ab" * 32


def of(uid: str, namespace_uid: str) -> WorkloadRef:
    return replace(workload(uid), namespace_uid=namespace_uid)


def start(told: Told, uid: str, namespace_uid: str) -> Told:
    return told.report(Starting(of(uid, namespace_uid), MD, POLICY))


def evict(told: Told, uid: str, namespace_uid: str, signal: str) -> Told:
    return told.preempt(replace(victim(uid), workload=of(uid, namespace_uid)), uid=signal)


def saved(generation: int = 5) -> Told:
    """The namespace before had a workload that was saved, and is gone with all that was in it."""
    told = evict(Told(), "w1", BEFORE, "s1").frozen()
    told.tell(Committed("s1.w1.1", ref(generation), Transfer(), manifest_digest=DIGEST)).killed().hold_is_released()
    return told.report(Ended("w1", "the pod was deleted"))


def continued(told: Told, uid: str, namespace_uid: str, generation: int) -> Told:
    start(told, uid, namespace_uid)
    return told.tell(
        SnapshotFound(f"restore.{uid}", ref(generation)), Staged(f"restore.{uid}"), RestoreSucceeded(f"restore.{uid}")
    )


def test_nothing_is_claimed_of_a_snapshot_that_the_namespace_before_had() -> None:
    told = start(saved(), "w2", NOW).tell(SnapshotFound("restore.w2"))
    assert told.order(StartCold).why is None
    assert told.tells() == []


def test_its_first_snapshot_is_no_late_answer_and_has_a_digest_of_its_own() -> None:
    told = start(saved(generation=5), "w2", NOW).tell(SnapshotFound("restore.w2", ref(1)))
    assert told.order(Stage).snapshot == ref(1)
    told = start(saved(generation=1), "w2", NOW).tell(SnapshotFound("restore.w2", ref(1)))
    assert told.order(Stage).manifest_digest == ""


def test_a_checkpoint_in_flight_of_the_namespace_before_is_not_waited_for() -> None:
    told = evict(Told(), "w1", BEFORE, "s1").frozen()
    assert start(told, "w2", NOW).order(FindSnapshot).identity == MD


def test_who_ran_in_the_namespace_before_keeps_no_claim_and_no_identity() -> None:
    told = continued(Told(), "w1", BEFORE, 1)
    assert start(told, "w2", NOW).order(FindSnapshot).identity == MD
    told.tell(SnapshotFound("restore.w2", ref(1)))
    assert told.order(Stage).snapshot == ref(1)


def test_snapshots_that_killed_their_program_there_are_not_set_aside_here() -> None:
    told = Told()
    for uid in ("w1", "w2"):
        continued(told, uid, BEFORE, 1).now += 2
        told.report(Ended(uid, "the pod has failed", failed=True))
    assert start(told, "w3", NOW).order(FindSnapshot).avoiding == ()
    assert start(told, "w4", BEFORE).order(FindSnapshot).avoiding == (1,)


def test_what_was_called_off_there_excludes_nothing_here() -> None:
    told = evict(Told(), "w1", BEFORE, "s1").frozen().failed()
    assert told.step("s1.w1.1") == "Aborting"
    told.tell(NodeLost("n1"))
    assert start(told, "w2", NOW).order(FindSnapshot).excluding == ()


def test_who_ran_there_is_no_rival_of_who_is_saved_here() -> None:
    told = continued(Told(), "w1", BEFORE, 1)
    assert told.step("restore.w1") == "Running"
    evict(told, "w2", NOW, "s2")
    assert told.orders() == ["Freeze s2.w2.1"]


def test_what_is_claimed_there_is_not_spared_here() -> None:
    told = continued(Told(), "w1", BEFORE, 1)
    evict(told, "w2", NOW, "s2").frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1")
    assert told.order(ApplyRetention).spare == ()


@pytest.mark.parametrize("noted", [("", NOW), (BEFORE, ""), ("", "")])
def test_where_nobody_noted_which_namespace_it_was_a_name_is_a_name(noted: tuple[str, str]) -> None:
    """Records of an older version, and names that are shared."""
    before, now = noted
    told = continued(Told(), "w1", before, 1)
    start(told, "w2", now)
    assert told.sent() == [], "it waits for who runs as it"


def test_a_coordinator_that_restarts_knows_which_namespace_it_was() -> None:
    told = start(saved().restart(), "w2", NOW).tell(SnapshotFound("restore.w2"))
    assert told.order(StartCold).why is None


def test_a_hold_says_of_which_namespace_its_victims_are() -> None:
    told = evict(Told(), "w1", BEFORE, "s1")
    hold = told.saved["s1"]
    assert isinstance(hold, PreemptionHold)
    assert (hold.namespace, hold.namespace_uid) == ("bio", BEFORE)
    two = (replace(victim("w1"), workload=of("w1", "")), replace(victim("w2"), workload=of("w2", NOW)))
    signal = Signal("s2", "kueue", two, "Preempted", told.now)
    hold = told.report(Preempted(signal)).saved["s2"]
    assert isinstance(hold, PreemptionHold)
    assert hold.namespace_uid == NOW


def test_who_was_said_to_be_of_another_namespace_waits_for_who_runs_as_it_once_that_is_corrected() -> None:
    told = start(continued(Told(), "w1", NOW, 1), "w2", BEFORE)
    assert told.orders() == ["FindSnapshot restore.w2"]
    told.tell(NamespaceCorrected("restore.w2", NOW), SnapshotFound("restore.w2", ref(1)))
    assert told.step("restore.w2") == "Waiting"
    told.report(Ended("w1", "the pod was deleted"))
    assert told.orders() == ["FindSnapshot restore.w2"]


def test_a_corrected_namespace_is_remembered_and_forgotten_records_are_not_made_again() -> None:
    told = evict(Told(), "w1", BEFORE, "s1").tell(
        *(NamespaceCorrected(uid, NOW) for uid in ("s1", "s1.w1.1", "forgotten"))
    )
    assert told.saved.keys() == {"s1", "s1.w1.1"}
    hold, saving = told.saved["s1"], told.saved["s1.w1.1"]
    assert isinstance(hold, PreemptionHold)
    assert isinstance(saving, Checkpoint)
    assert hold.namespace_uid == saving.workload.namespace_uid == NOW
