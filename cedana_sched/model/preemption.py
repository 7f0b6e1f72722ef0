"""Preemption as reported by an adapter: victims, preemptor, reason and deadline.

Times are seconds since the epoch. The model is scheduler-agnostic; `adapter` names the reporting adapter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy


class AfterCommit(StrEnum):
    """What happens to the workload after the commit."""

    STOP = "Stop"
    """Kill it while still frozen: a preemption."""
    LEAVE_RUNNING = "LeaveRunning"
    """Thaw it: a backup, on request or periodic."""


CONFIRMATION_SECONDS: Final = 30.0
"""How long the preStop call of a deleted pod waits until an adapter confirms that the pod is preempted, or denies it; a
confirmation mostly takes less than a second. After that the processes terminate. Longer than another replica needs to
lead (`kube.lease.LeaseTiming`) and to fill its caches, so that the death of a coordinator costs no work."""
INTERVAL: Final = "Interval"
"""The reason of periodic snapshots: `CheckpointPolicy.interval_seconds` has passed."""


class WorkloadRef(msgspec.Struct, frozen=True, order=True):
    """One incarnation of a workload: a pod, or a run of a local job. `uid` is never reused."""

    uid: str
    namespace: str
    name: str
    node: str
    namespace_uid: str = ""
    """Distinguishes namespaces that have, or had, this name; empty: see `identity.may_be_same_namespace`."""


class HeldObject(msgspec.Struct, frozen=True):
    """The object by which a scheduler evicts, and whose update is held: for example a Job to be suspended."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Victim(msgspec.Struct, frozen=True):
    """One workload to evict. Members of one `gang` are frozen together and fail together.

    `refused`: why it must not be saved, if another workload runs under its identity.
    """

    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy = CheckpointPolicy()
    gang: str | None = None
    started_at: float | None = None
    refused: str | None = None


class Signal(msgspec.Struct, frozen=True):
    """A preemption (or a request to checkpoint), observed at the earliest point that the scheduler offers.

    `uid` is the same for every report of one preemption, also after a restart of the adapter, which makes repeated
    signals idempotent; it becomes part of file names: letters, digits and `._:@+~=-`, at most 180 characters. All
    victims are released together, once the last checkpoint is terminal. `not_after` is an external deadline (a pod's
    deletion, a node's end), if any. `release_group` groups signals, for example of one preemptor: their victims are
    released together too, unless one signal's deadline comes first. `held` is the object whose update an admission
    webhook refuses until the release.
    """

    uid: str
    adapter: str
    victims: tuple[Victim, ...]
    reason: str
    observed_at: float
    preemptor: str | None = None
    not_after: float | None = None
    after_commit: AfterCommit = AfterCommit.STOP
    release_group: str | None = None
    held: HeldObject | None = None


class Verdict(StrEnum):
    """The coordinator's decision on one held eviction."""

    COMMITTED = "Committed"
    """The snapshot is committed. The workload is killed, or frozen until its pod is deleted, and killed then."""
    EVICT = "Evict"
    """There is no snapshot of this moment; evict as without this product."""
    KEEP_RUNNING = "KeepRunning"
    """There is no snapshot; the policy prefers another victim, if the scheduler can choose one."""
    NOT_NEEDED = "NotNeeded"
    """The victim ended, or the preemption was cancelled; the workload is unchanged."""


class Release(msgspec.Struct, frozen=True):
    """The end of a hold: one verdict and one reason per victim, by workload uid."""

    signal_uid: str
    verdicts: dict[str, Verdict]
    reasons: dict[str, str] = {}
