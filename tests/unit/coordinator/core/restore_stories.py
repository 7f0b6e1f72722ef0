"""How restores begin, in few words: for the tests of them."""

from __future__ import annotations

from cedana_sched.adapter.contract import Starting
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    RestoreSucceeded,
    SnapshotFound,
    Staged,
)
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure
from cedana_sched.model.records import Restore
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, workload

FORK = Identity("bio", "fork")
FAIL = CheckpointPolicy(restore_deadline_seconds=90, on_restore_failure=OnRestoreFailure.FAIL)


def start(
    told: Told,
    uid: str = "w2",
    identity: Identity = MD,
    policy: CheckpointPolicy = POLICY,
    requested_snapshot: SnapshotRef | None = None,
) -> Told:
    return told.report(Starting(workload(uid), identity, policy, requested_snapshot))


def saved() -> Told:
    """`w1` was preempted, committed as generation 1 and killed."""
    return Told().running().preempt().frozen().committed().killed()


def restored() -> Told:
    """`w2` runs from generation 1."""
    told = start(saved()).tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2"))
    return told.tell(RestoreSucceeded("restore.w2"))


def restore(told: Told, uid: str = "w2") -> Restore:
    return told.core.registry.restores[f"restore.{uid}"]
