"""What the coordinator remembers: one record for each checkpoint, hold and restore.

Records are immutable; a step forward is a new record. They are all the state there is: an engine that is
killed at any instant reads them back and carries on (the embedded engine from SQLite, in a cluster from the
objects of the same names). Times are seconds since the epoch, sizes are bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit, HeldObject, Verdict, WorkloadRef
from cedana_sched.model.texts import LONGEST_TEXT, cut

LONGEST_REASONS = 100_000
"""Characters of all reasons of a hold together: an object has room for some 1.5 MB."""


class Phase(StrEnum):
    """What a person sees of a checkpoint; the names are those of KEP-5823's `PodCheckpoint`."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    READY = "Ready"
    FAILED = "Failed"


class CheckpointStep(StrEnum):
    """Where a checkpoint is, finer than its phase: what the agent was told to reach, or has reached."""

    WAITING = "Waiting"
    """Nothing is ordered yet: another checkpoint of the workload, its restore, or the pause after a failed attempt
    must end first."""
    FREEZING = "Freezing"
    """The agent was told to freeze the workload."""
    FROZEN = "Frozen"
    """It executes nothing any more, and waits for the rest of its gang."""
    DUMPING = "Dumping"
    """Its state is streamed to the store."""
    COMMITTED = "Committed"
    """The manifest is in the store; the workload is still frozen, and waits for the rest of its gang."""
    KILLING = "Killing"
    """The whole gang is committed: the frozen workload is killed and never executes again."""
    THAWING = "Thawing"
    """The whole gang is committed and is to run on."""
    ABORTING = "Aborting"
    """It failed, or was called off: the workload is being thawed, an unfinished snapshot removed."""
    READY = "Ready"
    """Done: the snapshot can be restored."""
    FAILED = "Failed"
    """Done: there is no snapshot; the workload ran on, ended by itself, or was let go."""


TERMINAL_CHECKPOINT_STEPS = frozenset({CheckpointStep.READY, CheckpointStep.FAILED})

_PHASES = {
    CheckpointStep.WAITING: Phase.PENDING,
    CheckpointStep.FREEZING: Phase.PENDING,
    CheckpointStep.READY: Phase.READY,
    CheckpointStep.FAILED: Phase.FAILED,
}


class Transfer(msgspec.Struct, frozen=True):
    """Bytes of one snapshot, as far as they are known."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    stored_bytes: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One generation of one workload in the making, or made."""

    uid: str
    signal_uid: str
    adapter: str
    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy
    gang: str | None
    after_commit: AfterCommit
    reason: str
    step: CheckpointStep
    created_at: float
    deadline: float
    workload_started_at: float | None = None
    frozen_at: float | None = None
    committed_at: float | None = None
    finished_at: float | None = None
    snapshot: SnapshotRef | None = None
    manifest_digest: str = ""
    """BLAKE3 of the snapshot's manifest, in hexadecimal digits; empty: its agent did not say."""
    transfer: Transfer = Transfer()
    failure: str | None = None
    verdict: Verdict | None = None
    attempt: int = 1
    """Counts from 1; an attempt after a failed one is another checkpoint, with another uid."""
    not_before: float | None = None
    """The pause after a failed attempt ends here."""
    cancelled: bool = False
    """Its abort was decided: a snapshot that it may commit all the same is never used."""
    workload_gone: bool = False
    """Its frozen workload was destroyed from outside (its node lost, say) after the commit."""
    kill_pending: bool = False
    """Committed and still there, frozen: it dies when its scheduler really evicts it."""
    eviction_cancelled: bool = False
    """Its scheduler did not evict it after all: it was thawed, and runs on past its snapshot."""
    unconfirmed: bool = False
    """Settled although its node never answered the last order, or has left a snapshot that was called off: it is
    repeated until that is done, or until the record is forgotten. Also of a lost node, where it was called off and may
    have been committed all the same."""
    cleanup_pending: bool = False
    """Unconfirmed, and its node has let the workload run on: only what it may have committed is still to be removed."""

    @property
    def phase(self) -> Phase:
        return _PHASES.get(self.step, Phase.IN_PROGRESS)

    @property
    def is_terminal(self) -> bool:
        """Whether its hold waits for it no longer. One that is `Ready` may still be spared, and resumes then."""
        return self.step in TERMINAL_CHECKPOINT_STEPS

    @property
    def stops(self) -> bool:
        """Whether its workload executes nothing after the commit."""
        return self.after_commit is AfterCommit.STOP and not self.eviction_cancelled


class HoldStep(StrEnum):
    """Where a held eviction is."""

    HOLDING = "Holding"
    RELEASING = "Releasing"
    """The adapter was told to let the scheduler go on, and has not confirmed it."""
    RELEASED = "Released"


class PreemptionHold(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One eviction being held: its victims' checkpoints, and how it ended. `uid` is the signal's."""

    uid: str
    adapter: str
    preemptor: str | None
    reason: str
    step: HoldStep
    created_at: float
    deadline: float
    checkpoints: tuple[str, ...]
    """The latest attempt for each victim."""
    release_group: str | None = None
    """Holds of one adapter and of equal value are released together."""
    namespace: str = ""
    """Of the held object, else of the victims."""
    namespace_uid: str = ""
    """As of `WorkloadRef`."""
    held: HeldObject | None = None
    released_at: float | None = None
    verdicts: dict[str, Verdict] = {}
    """By workload uid, from the moment the release is decided."""
    reasons: dict[str, str] = {}


class RestoreStep(StrEnum):
    """Where the return of a workload is."""

    WAITING = "Waiting"
    """The store is asked, a snapshot of its identity is in flight, or another workload still runs as it."""
    STAGING = "Staging"
    """The snapshot is claimed; its bytes are fetched and verified on the node."""
    RESTORING = "Restoring"
    """The node continues the processes."""
    STARTING_COLD = "StartingCold"
    """There is nothing to continue, or it failed and the policy says start anew."""
    FAILING_WORKLOAD = "FailingWorkload"
    """It failed, and the policy forbids a cold start: the node is told to fail the workload."""
    RUNNING = "Running"
    """It runs; `cold` says how it came back. The claim lasts until it ends."""
    FAILED = "Failed"
    """It did not come back: its policy forbids a cold start, or its node does not answer. Where its node does not
    answer, or was continuing it when it was given up, it has no `finished_at`, and its claim lasts, until the node
    says more or the workload has ended."""
    ENDED = "Ended"
    """The workload is gone; the claim is free."""


TERMINAL_RESTORE_STEPS = frozenset({RestoreStep.FAILED, RestoreStep.ENDED})


class Restore(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One start of a workload that has an identity: restored from `snapshot`, or cold and why."""

    uid: str
    adapter: str
    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy
    step: RestoreStep
    created_at: float
    deadline: float
    snapshot: SnapshotRef | None = None
    """The snapshot it claims, from the moment it is chosen until the workload has ended."""
    manifest_digest: str = ""
    """As the Checkpoint says that made the snapshot; empty: no record says."""
    requested_snapshot: SnapshotRef | None = None
    newest_snapshot: SnapshotRef | None = None
    """The newest that was known to be committed when it started; the checkpoint's record may be forgotten."""
    incarnation: int = 0
    """Which of the workload's beginnings this attempt is for; one that begins anew has another record."""
    cold: bool = False
    failure: str | None = None
    running_at: float | None = None
    finished_at: float | None = None
    damaged: tuple[SnapshotRef, ...] = ()
    """The snapshots that its node could not read whole: it looks for an older one."""
    quick_failures: tuple[SnapshotRef, ...] = ()
    """The snapshots from which a program of this identity was continued only to fail soon, once for each time. Every
    restore takes over those of the one before it."""

    @property
    def set_aside(self) -> frozenset[SnapshotRef]:
        """Snapshots that are not restored again, because they have killed their program too often."""
        return frozenset(
            ref for ref in self.quick_failures if self.quick_failures.count(ref) >= self.policy.quick_failure_threshold
        )

    @property
    def passed_over(self) -> frozenset[SnapshotRef]:
        """Snapshots that it does not continue from, and looks for an older one."""
        return self.set_aside.union(self.damaged)


Record = Checkpoint | PreemptionHold | Restore
R = TypeVar("R", bound=Record)


def of_namespace(record: Record, uid: str) -> Record:
    """The same record, of the namespace with this uid; empty: of any of the name."""
    if isinstance(record, PreemptionHold):
        return replace(record, namespace_uid=uid)
    workload = replace(record.workload, namespace_uid=uid)
    return replace(record, workload=workload)


def bounded(record: R) -> R:
    """The same record, its texts of others cut; an older version, or a defect, may have kept longer ones."""
    if not isinstance(record, PreemptionHold):
        failure = record.failure
        return record if failure is None or (kept := cut(failure)) == failure else replace(record, failure=kept)
    longest = max(min(LONGEST_TEXT, LONGEST_REASONS // max(len(record.reasons), 1)), 1)
    reasons = {uid: cut(reason, longest) for uid, reason in record.reasons.items()}
    return record if reasons == record.reasons else replace(record, reasons=reasons)
