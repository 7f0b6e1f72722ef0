"""The contract between the coordinator and a scheduler's adapter: one required protocol, and optional ones.

An adapter translates its scheduler's preemptions into reports, and releases into what unblocks its scheduler. An
adapter makes no decisions, keeps no state that it cannot rebuild from its scheduler, and may be killed at any instant.
Adapters import `cedana_sched.model` and this package, never another adapter or the coordinator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, WorkloadRef


class Preempted(msgspec.Struct, frozen=True, tag=True):
    """The scheduler decided to preempt these workloads. Idempotent."""

    signal: Signal
    """The victims, the reason and the time limit. Its uid names this preemption in all later calls."""


class PreemptionCancelled(msgspec.Struct, frozen=True, tag=True):
    """The scheduler no longer needs the victims' resources."""

    signal_uid: str
    """The uid of the signal that was reported."""
    why: str
    """A clause for Events and records."""


class LastSaved(msgspec.Struct, frozen=True, tag=True):
    """A workload that was saved."""

    workload_uid: str
    """Its `WorkloadRef.uid`."""
    began_at: float
    """When its checkpoint began (epoch seconds)."""


class Starting(msgspec.Struct, frozen=True, tag=True):
    """A workload with an identity was bound to a node; it waits for the decision between restore and cold start."""

    workload: WorkloadRef
    """The workload as it runs: its uid differs in each of its incarnations."""
    identity: Identity
    """Selects its snapshots."""
    policy: CheckpointPolicy = CheckpointPolicy()
    """Deadlines, and what follows a failed restore."""
    requested_snapshot: SnapshotRef | None = None
    """The snapshot that a user requested; None means the newest."""
    rival: WorkloadRef | None = None
    """Workload that runs under the same identity and is not about to end. A repeated report may add it."""
    continues: bool = False
    """Whether the workload was started to continue a preempted one's work. It then waits for another workload of its
    identity to end instead of starting cold beside it; if no snapshot is found, the cold start is reported."""
    incarnation: int = 0
    """How often the workload was restarted without ending by itself, for example after a reboot of its node."""
    newest_snapshot: SnapshotRef | None = None
    """The newest snapshot of its identity that is known to be committed and was not deleted by a user."""
    refused: str | None = None
    """Why the workload must not be restored at all: it starts cold or fails, as its policy requires."""
    predecessor: str | None = None
    """Why an earlier workload of its identity may still run, and the remedy; until a repeated report has None here, the
    workload neither is restored nor starts cold."""
    ran_on: tuple[SnapshotRef, ...] = ()
    """Snapshots of its identity after which its program has executed, as far as known (`model.records.has_run_on`)."""
    loss: str | None = None
    """How an earlier workload of its identity was lost with its node, so that the policy's `on_node_loss` applies; None
    if it was not, or if a Restore shows it."""
    saved: LastSaved | None = None
    """The workload of `newest_snapshot`, which may have run without a Restore; None: unknown."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A workload is gone, whatever the cause: it finished, failed, was evicted or deleted."""

    workload_uid: str
    """`WorkloadRef.uid` of its reported start or preemption."""
    why: str
    """A clause for Events and records."""
    failed: bool = False
    """Whether its own program failed: the workload was not evicted, stopped or deleted, and did not succeed."""
    ran_seconds: float | None = None
    """Run time by the clock of its node; None if unknown."""
    lost_with_node: bool = False
    """Whether it ended because its node was lost."""


Report = Preempted | PreemptionCancelled | Starting | Ended
"""What an adapter reports."""


@runtime_checkable
class Adapter(Protocol):
    """The required protocol of an adapter."""

    name: ClassVar[str]
    """The scheduler's name in records, metrics and messages; equal to the entry point's name."""

    def reports(self) -> AsyncIterator[Report]:
        """Yield reports, as early as the scheduler allows; after a restart repeat all pending ones first.

        Pending are unreleased preemptions, workloads that wait for a start decision, and ends of workloads meanwhile.
        Preemptions withdrawn while no reader was connected are reported now, or at the latest when released.
        """
        ...

    async def release(self, release: Release) -> None:
        """Release a held eviction to the scheduler.

        Idempotent: the coordinator repeats the same release until one call returns, except that verdicts become
        `NotNeeded` once the adapter has reported so. A scheduler that cannot choose another victim evicts also if the
        verdict is `KeepRunning`.

        Raises:
            RetryableError: the scheduler is unreachable now; the coordinator retries.
        """
        ...


@runtime_checkable
class HoldsEvictions(Protocol):
    """Optional: the adapter itself blocks the eviction until `release`.

    On Kubernetes, admission webhooks usually block it while the PreemptionHold is active (see `Signal.held` and
    `adapter.marked_evictions`). If neither does, the checkpoint races the eviction.
    """

    async def hold(self, signal: Signal) -> float | None:
        """Block the eviction; return the limit of the hold (epoch seconds), or None without a limit. Idempotent."""
        ...
