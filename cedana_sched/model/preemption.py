"""A preemption as an adapter reports it: who must go, for whom, why, and by when.

Times are seconds since the epoch. Nothing here knows a scheduler by name; `adapter` says who speaks.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy


class AfterCommit(StrEnum):
    """What happens to the workload once its snapshot is committed."""

    STOP = "Stop"
    """It is killed while still frozen: a preemption."""
    LEAVE_RUNNING = "LeaveRunning"
    """It is thawed and runs on: a backup on request."""


class WorkloadRef(msgspec.Struct, frozen=True, order=True):
    """One incarnation of a workload: a pod, or a run of a local job. `uid` is never used twice."""

    uid: str
    namespace: str
    name: str
    node: str
    namespace_uid: str = ""
    """Which of all namespaces that have, or had, this name; empty: see `identity.may_be_one_namespace`."""


class HeldObject(msgspec.Struct, frozen=True):
    """The object by which a scheduler evicts, and whose change is held: a Job that is to be suspended, say."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Victim(msgspec.Struct, frozen=True):
    """One workload that must go. Members of one `gang` are frozen together and fail together.

    `refused`: why it must not be saved, where somebody else runs under its identity.
    """

    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy = CheckpointPolicy()
    gang: str | None = None
    started_at: float | None = None
    refused: str | None = None


class Signal(msgspec.Struct, frozen=True):
    """A preemption (or a request to checkpoint), seen at the earliest point the scheduler offers.

    `uid` is the same for every report of the same preemption, also after a restart of the adapter, so that
    repeated signals are harmless; it becomes a part of file names: letters, digits and `._:@+~=-`, at most 180. All
    victims are released together, when the last of them is settled.
    `not_after` is a deadline that comes from outside (a pod's deletion, a node's end), if there is one.
    `together` names what several signals have in common, one preemptor for instance: their victims too are released
    together, unless the deadline of one comes first. `held` is the object whose change an admission webhook refuses
    until the release.
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
    """What the coordinator tells a scheduler about one held eviction."""

    COMMITTED = "Committed"
    """The snapshot is safe. The workload is dead already, or frozen until its pod is deleted, and is killed then."""
    EVICT = "Evict"
    """There is no snapshot of this moment; evict as you would without us."""
    KEEP_RUNNING = "KeepRunning"
    """There is no snapshot; the admin prefers that you choose another victim, if you can."""
    NOT_NEEDED = "NotNeeded"
    """The victim ended, or the preemption was called off; the workload is as it was."""


class Release(msgspec.Struct, frozen=True):
    """The end of a hold: one verdict for each victim, by workload uid, and why in words."""

    signal_uid: str
    verdicts: dict[str, Verdict]
    reasons: dict[str, str] = {}
