"""A job of the embedded engine: its description, its phase and its incarnations.

Jobs are immutable: `apply_transition` makes a new `Job` for each transition, from a table. Times are seconds since the
epoch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from cedana_sched.local.scheduler.resources import Resources
from cedana_sched.model.errors import IllegalTransitionError
from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import WorkloadRef


class JobPhase(StrEnum):
    """The phase of a job, as `ps` shows it."""

    QUEUED = "Queued"
    """The job waits for its group's quota, for the first time or after a preemption."""
    STARTING = "Starting"
    """The job is admitted; its processes are being restored or started."""
    RUNNING = "Running"
    PREEMPTING = "Preempting"
    """The job is being evicted, and still has its place."""
    SUSPENDED = "Suspended"
    """The job was stopped with a snapshot on request, until a user restores it."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


LIVE_PHASES = frozenset({JobPhase.QUEUED, JobPhase.STARTING, JobPhase.RUNNING, JobPhase.PREEMPTING, JobPhase.SUSPENDED})
"""Phases in which a job owns its checkpoint id."""
PLACED_PHASES = frozenset({JobPhase.STARTING, JobPhase.RUNNING, JobPhase.PREEMPTING})
"""Phases in which a job counts as usage of its group."""


class TransitionCause(StrEnum):
    """The cause of a transition between phases."""

    ADMITTED = "it was admitted"
    BEGAN = "all its processes run"
    PREEMPTED = "it must leave its place"
    KEPT = "it keeps its place"
    REQUEUED = "it left its place"
    STOPPED = "it was stopped with a snapshot"
    RESTORED = "a person restored it"
    SUCCEEDED = "it ended well"
    FAILED = "it failed"
    CANCELLED = "it was cancelled"


_P = JobPhase
TRANSITIONS: dict[tuple[JobPhase, TransitionCause], JobPhase] = {
    (_P.QUEUED, TransitionCause.ADMITTED): _P.STARTING,
    (_P.QUEUED, TransitionCause.CANCELLED): _P.CANCELLED,
    (_P.STARTING, TransitionCause.BEGAN): _P.RUNNING,
    (_P.STARTING, TransitionCause.REQUEUED): _P.QUEUED,
    (_P.STARTING, TransitionCause.SUCCEEDED): _P.SUCCEEDED,
    (_P.STARTING, TransitionCause.FAILED): _P.FAILED,
    (_P.STARTING, TransitionCause.CANCELLED): _P.CANCELLED,
    (_P.RUNNING, TransitionCause.PREEMPTED): _P.PREEMPTING,
    (_P.RUNNING, TransitionCause.REQUEUED): _P.QUEUED,
    (_P.RUNNING, TransitionCause.SUCCEEDED): _P.SUCCEEDED,
    (_P.RUNNING, TransitionCause.FAILED): _P.FAILED,
    (_P.RUNNING, TransitionCause.CANCELLED): _P.CANCELLED,
    (_P.PREEMPTING, TransitionCause.KEPT): _P.RUNNING,
    (_P.PREEMPTING, TransitionCause.REQUEUED): _P.QUEUED,
    (_P.PREEMPTING, TransitionCause.STOPPED): _P.SUSPENDED,
    (_P.PREEMPTING, TransitionCause.SUCCEEDED): _P.SUCCEEDED,
    (_P.PREEMPTING, TransitionCause.FAILED): _P.FAILED,
    (_P.PREEMPTING, TransitionCause.CANCELLED): _P.CANCELLED,
    (_P.SUSPENDED, TransitionCause.RESTORED): _P.QUEUED,
    (_P.SUSPENDED, TransitionCause.CANCELLED): _P.CANCELLED,
    (_P.SUCCEEDED, TransitionCause.RESTORED): _P.QUEUED,
    (_P.FAILED, TransitionCause.RESTORED): _P.QUEUED,
    (_P.CANCELLED, TransitionCause.RESTORED): _P.QUEUED,
}


PREEMPTED, LOST, CANCELLED, WITH_GANG = "preempted", "lost", "cancelled", "ended with the rest of its gang"
NO_FAILURES = frozenset({PREEMPTED, LOST, CANCELLED, WITH_GANG})
"""Endings of a run that are not failures of the job."""


class JobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A submission, validated and defaulted; immutable. `request` is for each replica."""

    uid: str
    namespace: str
    name: str
    id: str | None
    """The checkpoint id; None if the job is not opted in: it is preempted by a plain kill and restarted cold."""
    group: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None
    user: str | None
    request: Resources
    priority: int
    replicas: int
    policy: CheckpointPolicy
    stdout: str
    stderr: str
    submitted_at: float
    tty: bool = False
    """Whether the job has a terminal, whose output goes to `stdout`."""

    def identity(self, index: int) -> Identity | None:
        return None if self.id is None else Identity(self.namespace, self.id, index)

    def output_paths(self, index: int) -> tuple[str, str]:
        """Return where replica `index` writes stdout and stderr; each of several replicas has its own files."""
        if self.replicas == 1:
            return (self.stdout, self.stderr)
        return (f"{self.stdout}.{index}", f"{self.stderr}.{index}")


class RunObstacle(msgspec.Struct, frozen=True):
    """What a checkpoint of a run would fail for; `reason` is a CamelCase constant, `message` is for users."""

    reason: str
    message: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of one replica's processes."""

    uid: str
    index: int
    attempt: int
    """The admission of the job that the run belongs to, counted from 1."""
    began_at: float | None = None
    restored: bool = False
    restored_from: str | None = None
    cold_because: str | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    ending: str | None = None
    """In words, how the run ended if not by itself: preempted, lost, never started."""
    preserved_seconds: float = 0.0
    """Running time that is in a snapshot and has not been restored yet."""
    obstacle: RunObstacle | None = None
    """As the last look at its processes found; None: none was found."""

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None

    @property
    def succeeded(self) -> bool:
        """Whether the run completed its work; a terminated run did not, whatever its exit code."""
        return self.exit_code == 0 and self.ending is None

    @property
    def failed(self) -> bool:
        """Whether the run exited by itself with a failure, or could not start."""
        return self.has_ended and not self.succeeded and self.ending not in NO_FAILURES


class JobEviction(msgspec.Struct, frozen=True, kw_only=True):
    """The eviction of a job."""

    cause: TransitionCause = TransitionCause.REQUEUED
    """The transition after the eviction: requeued, or stopped until a user restores the job."""
    preemptor: str | None = None
    signal: str | None = None
    """The signal under which the coordinator holds the eviction; None for a plain termination."""
    cancelled: bool = False
    """Whether the preemption was cancelled, and the cancellation reported to the coordinator."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job: its description, its phase and its history."""

    description: JobDescription
    phase: JobPhase = JobPhase.QUEUED
    why: str = ""
    """In words, what the job waits for or how it ended."""
    runs: tuple[Run, ...] = ()
    leaving: JobEviction | None = None
    snapshot_signal: str | None = None
    """The signal of a snapshot that is being taken while the job keeps running."""
    cancelling: bool = False
    claims: bool = False
    """Whether a place is being freed for the job."""
    preemptions: int = 0
    refusals: int = 0
    """Consecutive snapshots that failed and left the job running."""
    protected_until: float = 0.0
    work_saved_seconds: float = 0.0
    wanted_generation: int | None = None
    attempts: int = 0
    """Number of admissions."""
    void_attempts: int = 0
    """Attempts before a user restarted the ended job: replicas that finished in these attempts run again."""
    admitted_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: str | None = None

    @property
    def uid(self) -> str:
        return self.description.uid

    @property
    def live(self) -> bool:
        return self.phase in LIVE_PHASES

    @property
    def active_runs(self) -> tuple[Run, ...]:
        """The incarnations that have not ended."""
        return tuple(run for run in self.runs if not run.has_ended)

    @property
    def runs_of_latest_attempt(self) -> tuple[Run, ...]:
        """The incarnations of the last admission."""
        return tuple(run for run in self.runs if run.attempt == self.attempts)

    @property
    def has_failed_replica(self) -> bool:
        """Whether a replica failed or was lost, so that the rest of the gang is being terminated."""
        return any(run.failed or run.ending == LOST for run in self.runs_of_latest_attempt)

    @property
    def completed_replicas(self) -> frozenset[int]:
        """Replicas that completed their work, and are not restarted with the others."""
        return frozenset(run.index for run in self.runs if run.succeeded and run.attempt > self.void_attempts)

    @property
    def gang_request(self) -> Resources:
        """The request of the whole gang; completed replicas request nothing when the gang is restarted."""
        placed = self.phase in PLACED_PHASES
        return self.description.request.multiplied_by(
            len(self.runs_of_latest_attempt) if placed else self.description.replicas - len(self.completed_replicas)
        )

    def workload(self, run: Run, node: str) -> WorkloadRef:
        """Return the coordinator's reference to one of the job's incarnations."""
        name = self.description.name
        label = name if self.description.replicas == 1 else f"{name}-{run.index}"
        return WorkloadRef(uid=run.uid, namespace=self.description.namespace, name=label, node=node)

    def with_run(self, changed: Run) -> Job:
        """Return the job with one incarnation replaced by its newer state, or added."""
        if all(run.uid != changed.uid for run in self.runs):
            return replace(self, runs=(*self.runs, changed))
        return replace(self, runs=tuple(changed if run.uid == changed.uid else run for run in self.runs))


def apply_transition(job: Job, cause: TransitionCause, why: str, **changes: Any) -> Job:
    """Return the job after the transition for `cause`; `why` is the explanation for the job's owner.

    Raises:
        IllegalTransitionError: the table has no such transition; the evidence is the job's incarnations.
    """
    phase = TRANSITIONS.get((job.phase, cause))
    if phase is None:
        history = tuple(f"{run.uid}: {run.ending or run.exit_code}" for run in job.runs)
        raise IllegalTransitionError(
            f"job {job.uid} cannot leave {job.phase.value} because {cause.value}", evidence=history
        )
    return replace(job, phase=phase, why=why, **changes)
