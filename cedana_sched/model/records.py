"""Persistent state of the coordinator: one record per checkpoint, hold and restore.

Records are immutable; a transition creates a new record. Records are the complete state: an engine killed at any
instant recovers from them (the embedded engine from SQLite, in a cluster from the objects of the same names). Times are
seconds since the epoch, sizes are bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import INTERVAL, AfterCommit, HeldObject, Verdict, WorkloadRef
from cedana_sched.model.texts import LONGEST_TEXT, truncate_text

LONGEST_REASONS = 100_000
"""Total characters of a hold's reasons; an object has room for about 1.5 MB."""


class Phase(StrEnum):
    """User-visible phase of a checkpoint, named as in KEP-5823's `PodCheckpoint`."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    READY = "Ready"
    FAILED = "Failed"


class CheckpointStep(StrEnum):
    """Detailed state of a checkpoint: what the agent was ordered to reach, or has reached."""

    WAITING = "Waiting"
    """No order was sent yet: another checkpoint of the workload, its restore, or the backoff after a failed attempt
    must end first."""
    FREEZING = "Freezing"
    """The agent was ordered to freeze the workload."""
    FROZEN = "Frozen"
    """The workload is frozen, and waits for the rest of its gang."""
    DUMPING = "Dumping"
    """Its state is being streamed to the store."""
    COMMITTED = "Committed"
    """The manifest is in the store; the workload is still frozen, and waits for the rest of its gang."""
    KILLING = "Killing"
    """The whole gang is committed: the frozen workload is killed and never executes again."""
    THAWING = "Thawing"
    """The whole gang is committed, and is thawed to run on."""
    ABORTING = "Aborting"
    """It failed or was cancelled: the workload is being thawed, an unfinished snapshot removed."""
    READY = "Ready"
    """Terminal: the snapshot can be restored."""
    FAILED = "Failed"
    """Terminal: there is no snapshot; the workload ran on, ended by itself, or was evicted."""


TERMINAL_CHECKPOINT_STEPS = frozenset({CheckpointStep.READY, CheckpointStep.FAILED})

_PHASES = {
    CheckpointStep.WAITING: Phase.PENDING,
    CheckpointStep.FREEZING: Phase.PENDING,
    CheckpointStep.READY: Phase.READY,
    CheckpointStep.FAILED: Phase.FAILED,
}


class Transfer(msgspec.Struct, frozen=True):
    """Bytes of one snapshot, as far as known."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    stored_bytes: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One generation of one workload's snapshots, in progress or complete."""

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
    """BLAKE3 of the snapshot's manifest, hexadecimal; empty if the agent did not report it."""
    transfer: Transfer = Transfer()
    failure: str | None = None
    verdict: Verdict | None = None
    attempt: int = 1
    """Starts at 1; a retry is another checkpoint with another uid."""
    not_before: float | None = None
    """End of the backoff after a failed attempt."""
    cancelled: bool = False
    """The abort is decided: a snapshot committed nevertheless is never used."""
    workload_gone: bool = False
    """The frozen workload was destroyed externally after the commit, for example with its node."""
    kill_pending: bool = False
    """Committed and still frozen: killed when its scheduler evicts it."""
    eviction_cancelled: bool = False
    """Its scheduler did not evict it: it was thawed, and runs on past its snapshot."""
    resumed: bool = False
    """Whether a node was ordered to restore processes from its snapshot, also if that failed."""
    workload_ended: bool = False
    """Its workload ran on past the snapshot, and has ended otherwise than with its node. Only of its last snapshot."""
    unconfirmed: bool = False
    """Terminal, but the node never answered the last order, or has left a cancelled snapshot: the order is repeated
    until that is done, or until the record expires. Also set on a lost node for a cancelled checkpoint that may have
    been committed nevertheless."""
    cleanup_pending: bool = False
    """Unconfirmed, and the node has thawed the workload: only a possibly committed snapshot is still to be removed."""

    @property
    def phase(self) -> Phase:
        return _PHASES.get(self.step, Phase.IN_PROGRESS)

    @property
    def is_terminal(self) -> bool:
        """Whether its hold no longer waits for it. A `Ready` checkpoint may still be spared, and then resumes."""
        return self.step in TERMINAL_CHECKPOINT_STEPS

    @property
    def is_stopped_after_commit(self) -> bool:
        """Whether its workload executes nothing after the commit."""
        return self.after_commit is AfterCommit.STOP and not self.eviction_cancelled

    @property
    def has_run_on(self) -> bool:
        """Whether the program may have executed after the snapshot: thawed, or restored from it."""
        return has_run_on(self.after_commit, eviction_cancelled=self.eviction_cancelled, resumed=self.resumed)

    @property
    def is_periodic(self) -> bool:
        """Whether no scheduler or user waits for it: evictions on its node cancel it."""
        return self.reason == INTERVAL and self.after_commit is AfterCommit.LEAVE_RUNNING


def has_run_on(after_commit: AfterCommit | str, *, eviction_cancelled: bool, resumed: bool) -> bool:
    """Return whether the program of a committed snapshot may have executed after it: files may be ahead of it.

    Args:
        after_commit: of the checkpoint that made it.
        eviction_cancelled: the saved workload was thawed after all.
        resumed: a node was ordered to restore processes from the snapshot.
    """
    return after_commit == AfterCommit.LEAVE_RUNNING or eviction_cancelled or resumed


class HoldStep(StrEnum):
    """State of a held eviction."""

    HOLDING = "Holding"
    RELEASING = "Releasing"
    """The adapter was instructed to release the scheduler, and has not confirmed."""
    RELEASED = "Released"


class PreemptionHold(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One held eviction: its victims' checkpoints, and its outcome. `uid` is the signal's."""

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
    """Namespace of the held object, or of the victims."""
    namespace_uid: str = ""
    """As of `WorkloadRef`."""
    held: HeldObject | None = None
    released_at: float | None = None
    verdicts: dict[str, Verdict] = {}
    """By workload uid; set once the release is decided."""
    reasons: dict[str, str] = {}


class RestoreStep(StrEnum):
    """State of a restore."""

    WAITING = "Waiting"
    """A lookup is in flight, a snapshot of its identity is in flight, or another workload runs under the identity."""
    STAGING = "Staging"
    """The snapshot is claimed; its bytes are fetched and verified on the node."""
    RESTORING = "Restoring"
    """The node restores the processes."""
    STARTING_COLD = "StartingCold"
    """There is no snapshot, or the restore failed and the policy requires a cold start."""
    FAILING_WORKLOAD = "FailingWorkload"
    """The restore failed, and the policy forbids a cold start: the node is ordered to fail the workload."""
    RUNNING = "Running"
    """The workload runs; `cold` is how it started. The claim lasts until it ends."""
    FAILED = "Failed"
    """The workload did not start: its policy forbids a cold start, or its node does not answer. If its node does not
    answer, or was restoring it when it was given up, `finished_at` is unset, and the claim lasts until the node answers
    or the workload has ended."""
    ENDED = "Ended"
    """The workload is gone; the claim is free."""


TERMINAL_RESTORE_STEPS = frozenset({RestoreStep.FAILED, RestoreStep.ENDED})


class Restore(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One start of a workload with an identity: restored from `snapshot`, or cold with a reason."""

    uid: str
    adapter: str
    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy
    step: RestoreStep
    created_at: float
    deadline: float
    snapshot: SnapshotRef | None = None
    """The claimed snapshot, from the choice until the workload has ended."""
    manifest_digest: str = ""
    """The digest recorded by the Checkpoint that created the snapshot; empty if unrecorded."""
    ran_on: bool | None = None
    """Whether the program had executed after `snapshot` before this restore, so that files may be ahead of it; None:
    unknown."""
    resumed_snapshot: SnapshotRef | None = None
    """The snapshot from which the node was ordered to restore processes, also if that failed."""
    requested_snapshot: SnapshotRef | None = None
    newest_snapshot: SnapshotRef | None = None
    """The newest snapshot known to be committed at the start; the checkpoint's record may have expired."""
    incarnation: int = 0
    """The workload's incarnation that this attempt is for; another incarnation has another record."""
    predecessor: str | None = None
    """Why an earlier workload of its identity may still run: until that has ended, this one waits."""
    cold: bool = False
    failure: str | None = None
    running_at: float | None = None
    finished_at: float | None = None
    damaged: tuple[SnapshotRef, ...] = ()
    """Snapshots that the node could not read completely; an older one is looked up."""
    lost_with_node: bool = False
    """Whether the workload ended because its node was lost, with all work since its last snapshot."""
    loss: str | None = None
    """How an earlier workload of its identity was lost with its node; nothing had run under the identity since then.
    Handed on until a workload has run."""
    quick_failures: tuple[SnapshotRef, ...] = ()
    """Snapshots whose program failed soon after a restore, once per failure. Every restore inherits those of the
    identity's previous restore."""

    @property
    def run_time(self) -> float:
        """When its workload began to run; see `run_time_of`."""
        return run_time_of(self.running_at, self.finished_at, self.created_at, lost_with_node=self.lost_with_node)

    @property
    def quarantined_snapshots(self) -> frozenset[SnapshotRef]:
        """Quarantined snapshots: their program failed too often soon after a restore."""
        return frozenset(
            ref for ref in self.quick_failures if self.quick_failures.count(ref) >= self.policy.quick_failure_threshold
        )

    @property
    def passed_over(self) -> frozenset[SnapshotRef]:
        """Snapshots that this restore skips in favour of an older one."""
        return self.quarantined_snapshots.union(self.damaged)


def run_time_of(
    running_at: float | None, finished_at: float | None, created_at: float, *, lost_with_node: bool
) -> float:
    """Return when the workload of a restore began to run: the order of the runs of an identity.

    One that was lost while it was being restored ran until then: it may be older than the checkpoint for which it had
    waited. One that has run nothing counts from its creation. Creation alone is no order: a restore that starts cold
    because it is refused runs before an earlier one that waits.
    """
    ended_at = finished_at if lost_with_node else None
    return running_at or ended_at or created_at


Record = Checkpoint | PreemptionHold | Restore
R = TypeVar("R", bound=Record)


def with_namespace_uid(record: Record, uid: str) -> Record:
    """Return the record with this namespace uid; empty matches any namespace of the name."""
    if isinstance(record, PreemptionHold):
        return replace(record, namespace_uid=uid)
    workload = replace(record.workload, namespace_uid=uid)
    return replace(record, workload=workload)


def truncate_record_texts(record: R) -> R:
    """Return the record with foreign texts cut; an older version, or a defect, may have stored longer ones."""
    if not isinstance(record, PreemptionHold):
        failure = record.failure
        return (
            record if failure is None or (kept := truncate_text(failure)) == failure else replace(record, failure=kept)
        )
    longest = max(min(LONGEST_TEXT, LONGEST_REASONS // max(len(record.reasons), 1)), 1)
    reasons = {uid: truncate_text(reason, longest) for uid, reason in record.reasons.items()}
    return record if reasons == record.reasons else replace(record, reasons=reasons)
