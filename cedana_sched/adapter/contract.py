"""The contract between the coordinator and a scheduler's adapter: one required protocol, and optional powers.

An adapter translates: its scheduler's preemptions into reports, our releases into what lets its scheduler go on.
It decides nothing, keeps no state that it cannot read back from its scheduler, and may be killed at any instant.
It imports `cedana_sched.model` and this package, never another adapter and never the coordinator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, WorkloadRef


class Preempted(msgspec.Struct, frozen=True, tag=True):
    """The scheduler decided to take these workloads' place. Repeating it is harmless."""

    signal: Signal


class PreemptionCancelled(msgspec.Struct, frozen=True, tag=True):
    """The scheduler does not need the victims' place any more."""

    signal_uid: str
    why: str


class Starting(msgspec.Struct, frozen=True, tag=True):
    """A workload with an identity got its node and is about to run; it runs only when it is told how."""

    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy = CheckpointPolicy()
    requested_snapshot: SnapshotRef | None = None
    """The very snapshot that a person asked for; None means the newest."""
    rival: WorkloadRef | None = None
    """Who runs under its identity, if that one is not about to end. It may be said later, too."""
    continues: bool = False
    """Whether it was started to go on with a preempted one's work. Then it does not begin anew because another one was
    started for the same: it waits for that one's end; and begins anew where nothing is found, but not silently."""
    incarnation: int = 0
    """How often its start was begun anew before, its processes gone without its own end: a node that rebooted, say."""
    newest_snapshot: SnapshotRef | None = None
    """The newest snapshot of its identity that is known to be committed, and that nobody has deleted."""
    refused: str | None = None
    """Why it gets no snapshot, whatever there is: it starts cold, or fails, as its policy says."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A workload is gone, by whatever cause: it finished, failed, was evicted or deleted."""

    workload_uid: str
    why: str
    failed: bool = False
    """Whether its own program failed: nobody evicted, stopped or deleted it, and it did not succeed."""
    ran_seconds: float | None = None
    """How long it ran, by the clock of its own node; None where nobody says."""


Report = Preempted | PreemptionCancelled | Starting | Ended


@runtime_checkable
class Adapter(Protocol):
    """What every adapter must do."""

    name: ClassVar[str]
    """The scheduler's name in records, metrics and messages; equal to the entry point's name."""

    def reports(self) -> AsyncIterator[Report]:
        """Yield what happens, from the earliest point on; after a restart first repeat all that is still pending.

        Pending are preemptions that were not released, workloads that wait to be told how to run, and the end of
        workloads that ended meanwhile. What was taken back while nobody listened is told now, or at the latest when it
        is released.
        """
        ...

    async def release(self, release: Release) -> None:
        """Let the scheduler go on with a held eviction.

        Idempotent: called again with the same release until it returns once, but for verdicts that have become
        `NotNeeded` because the adapter has told so. A scheduler that cannot be asked for
        another victim evicts also where the verdict is `KeepRunning`.

        Raises:
            RetryableError: it could not be told now; the coordinator calls again.
        """
        ...


@runtime_checkable
class HoldsEvictions(Protocol):
    """Optional: the adapter itself makes the eviction wait until `release`.

    On Kubernetes admission webhooks mostly do, by the PreemptionHold (see `Signal.held` and `adapter.evictions`). Where
    nobody does, the coordinator only races the eviction.
    """

    async def hold(self, signal: Signal) -> float | None:
        """Make the eviction wait; return until when it can (epoch seconds), or None for no limit. Idempotent."""
        ...
