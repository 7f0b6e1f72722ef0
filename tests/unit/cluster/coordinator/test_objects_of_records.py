"""Records become objects and come back."""

from __future__ import annotations

import msgspec
import pytest

from cedana_sched.cluster.coordinator.record_objects import resource_of, to_object, to_record
from cedana_sched.kube.resources import PREEMPTION_HOLDS
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy, Compression, OnRestoreFailure, Retention
from cedana_sched.model.preemption import AfterCommit, HeldObject, Verdict, WorkloadRef
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    HoldStep,
    PreemptionHold,
    Record,
    Restore,
    RestoreStep,
    Transfer,
)
from tests.unit.coordinator.core.simulation import play

_ID = Identity("bio", "md-run", 3)
_POD = WorkloadRef("0b3c", "bio", "md-3-x7k2p", "node-1")
_POLICY = CheckpointPolicy(
    deadline_seconds=90.5,
    compression=Compression.LZ4,
    on_restore_failure=OnRestoreFailure.FAIL,
    retention=Retention(keep_last=7, max_age_seconds=3600),
)
CHECKPOINT = Checkpoint(
    uid="s.0b3c.2",
    signal_uid="s",
    adapter="kueue",
    workload=_POD,
    identity=_ID,
    policy=_POLICY,
    gang="md",
    after_commit=AfterCommit.STOP,
    reason="InCohortReclamation",
    step=CheckpointStep.KILLING,
    created_at=1_800_000_000.25,
    deadline=1_800_000_600.5,
    workload_started_at=1_799_990_000.0,
    frozen_at=1_800_000_001.125,
    committed_at=1_800_000_002.0625,
    snapshot=SnapshotRef(_ID, 12),
    transfer=Transfer(3 << 30, 1 << 30, 5, 7),
    failure="the first attempt failed",
    verdict=Verdict.COMMITTED,
    attempt=2,
    not_before=1_800_000_001.0,
    cancelled=True,
    workload_gone=True,
    unconfirmed=True,
)
HOLD = PreemptionHold(
    uid="s",
    adapter="kueue",
    preemptor="ml/urgent",
    reason="InCohortReclamation",
    step=HoldStep.RELEASING,
    created_at=1_800_000_000.25,
    deadline=1_800_000_600.5,
    checkpoints=("s.0b3c.2",),
    release_group="preemptor-uid",
    namespace="bio",
    held=HeldObject("batch/v1", "Job", "bio", "md", "job-uid"),
    verdicts={"0b3c": Verdict.COMMITTED, "other": Verdict.EVICT},
    reasons={"other": "the store is down"},
)
RESTORE = Restore(
    uid="restore.0b3c",
    adapter="pods",
    workload=_POD,
    identity=_ID,
    policy=_POLICY,
    step=RestoreStep.RUNNING,
    created_at=1_800_000_700.0,
    deadline=1_800_001_300.0,
    snapshot=SnapshotRef(_ID, 12),
    newest_snapshot=SnapshotRef(Identity("bio", "md"), 2),
    requested_snapshot=SnapshotRef(Identity("bio", "older", 3), 2),
    cold=True,
    failure="because",
    running_at=1_800_000_703.5,
    finished_at=1_800_000_800.0,
    lost_with_node=True,
    loss="node node-1 was lost with md-0",
    ran_on=False,
    resumed_snapshot=SnapshotRef(_ID, 12),
    quick_failures=(SnapshotRef(_ID, 12), SnapshotRef(Identity("bio", "older", 3), 2)),
)


def _back(record: Record) -> Record:
    body = msgspec.json.decode(msgspec.json.encode(to_object(record, "cedana-system")))
    return to_record(resource_of(record), body)


@pytest.mark.parametrize("record", [CHECKPOINT, HOLD, RESTORE], ids=["checkpoint", "hold", "restore"])
def test_nothing_is_lost_on_the_way_through_an_object(record: Record) -> None:
    assert _back(record) == record


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_core_writes_comes_back(seed: int) -> None:
    records = play(seed).core.records()
    for record in records:
        if _wants_what_no_pod_can_ask_for(record):
            continue
        again = _back(record)
        assert _back(again) == again, "times settle after one trip"
        assert _without_times(again) == _without_times(record)


def _wants_what_no_pod_can_ask_for(record: Record) -> bool:
    """An annotation names a snapshot of the pod's own namespace, and so does the object."""
    if not isinstance(record, Restore) or record.requested_snapshot is None:
        return False
    return record.requested_snapshot.identity.namespace != record.identity.namespace


def _without_times(record: Record) -> dict[str, object]:
    """Also without a hold's namespace, which the object's own metadata fills in."""
    fields = msgspec.structs.asdict(record)
    return {name: value for name, value in fields.items() if not isinstance(value, float) and name != "namespace"}


def test_objects_say_in_words_what_is_awaited() -> None:
    [frozen, committed, ready] = to_object(CHECKPOINT, "cedana-system")["status"]["conditions"]
    assert (frozen["type"], frozen["status"]) == ("Frozen", "True")
    assert (committed["type"], committed["status"]) == ("Committed", "True")
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "Killing")
    assert ready["message"] == "the first attempt failed"


def test_no_deadline_of_a_forged_object_is_believed() -> None:
    body = to_object(HOLD, "cedana-system")
    body["status"]["deadline"] = "2999-01-01T00:00:00.000000Z"
    record = to_record(PREEMPTION_HOLDS, body)
    assert isinstance(record, PreemptionHold)
    assert record.deadline == pytest.approx(HOLD.created_at + 2 * 86_400)
