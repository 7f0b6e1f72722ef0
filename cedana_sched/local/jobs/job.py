"""A job of the embedded engine: what was submitted, where it is, and its incarnations.

Immutable; a step forward is a new `Job`, made by `step` from a table. The scheduling loop makes the steps, the
journal keeps the jobs. Times are seconds since the epoch.
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
    """Where a job is, as `ps` shows it."""

    QUEUED = "Queued"
    """It waits for its group's quota; also after it was preempted."""
    STARTING = "Starting"
    """It has its place; its processes are being restored or started."""
    RUNNING = "Running"
    PREEMPTING = "Preempting"
    """It is to leave its place, and still has it."""
    SUSPENDED = "Suspended"
    """It was stopped with a snapshot on request, and waits for a person to restore it."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


LIVE_PHASES = frozenset({JobPhase.QUEUED, JobPhase.STARTING, JobPhase.RUNNING, JobPhase.PREEMPTING, JobPhase.SUSPENDED})
"""A live job owns its checkpoint id."""
PLACED_PHASES = frozenset({JobPhase.STARTING, JobPhase.RUNNING, JobPhase.PREEMPTING})
"""A job that counts as usage of its group."""


class Cause(StrEnum):
    """What moves a job from one phase to the next."""

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
TRANSITIONS: dict[tuple[JobPhase, Cause], JobPhase] = {
    (_P.QUEUED, Cause.ADMITTED): _P.STARTING,
    (_P.QUEUED, Cause.CANCELLED): _P.CANCELLED,
    (_P.STARTING, Cause.BEGAN): _P.RUNNING,
    (_P.STARTING, Cause.REQUEUED): _P.QUEUED,
    (_P.STARTING, Cause.SUCCEEDED): _P.SUCCEEDED,
    (_P.STARTING, Cause.FAILED): _P.FAILED,
    (_P.STARTING, Cause.CANCELLED): _P.CANCELLED,
    (_P.RUNNING, Cause.PREEMPTED): _P.PREEMPTING,
    (_P.RUNNING, Cause.REQUEUED): _P.QUEUED,
    (_P.RUNNING, Cause.SUCCEEDED): _P.SUCCEEDED,
    (_P.RUNNING, Cause.FAILED): _P.FAILED,
    (_P.RUNNING, Cause.CANCELLED): _P.CANCELLED,
    (_P.PREEMPTING, Cause.KEPT): _P.RUNNING,
    (_P.PREEMPTING, Cause.REQUEUED): _P.QUEUED,
    (_P.PREEMPTING, Cause.STOPPED): _P.SUSPENDED,
    (_P.PREEMPTING, Cause.SUCCEEDED): _P.SUCCEEDED,
    (_P.PREEMPTING, Cause.FAILED): _P.FAILED,
    (_P.PREEMPTING, Cause.CANCELLED): _P.CANCELLED,
    (_P.SUSPENDED, Cause.RESTORED): _P.QUEUED,
    (_P.SUSPENDED, Cause.CANCELLED): _P.CANCELLED,
    (_P.SUCCEEDED, Cause.RESTORED): _P.QUEUED,
    (_P.FAILED, Cause.RESTORED): _P.QUEUED,
    (_P.CANCELLED, Cause.RESTORED): _P.QUEUED,
}


PREEMPTED, LOST, CANCELLED, WITH_GANG = "preempted", "lost", "cancelled", "ended with the rest of its gang"
NO_FAILURES = frozenset({PREEMPTED, LOST, CANCELLED, WITH_GANG})
"""Endings of a run that are not the job's own doing."""


class JobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What was submitted, made sure of and completed; it never changes. `request` is for each replica."""

    uid: str
    namespace: str
    name: str
    id: str | None
    """The checkpoint id; None is not opted in: preempted by a plain kill, and started anew."""
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

    def identity(self, index: int) -> Identity | None:
        return None if self.id is None else Identity(self.namespace, self.id, index)

    def output(self, index: int) -> tuple[str, str]:
        """Where replica `index` writes stdout and stderr; several replicas have a file each."""
        if self.replicas == 1:
            return (self.stdout, self.stderr)
        return (f"{self.stdout}.{index}", f"{self.stderr}.{index}")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of one replica's processes."""

    uid: str
    index: int
    attempt: int
    """Which admission of its job it belongs to, counted from 1."""
    began_at: float | None = None
    restored: bool = False
    restored_from: str | None = None
    cold_because: str | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    ending: str | None = None
    """In words, how it ended if not by itself: preempted, lost, never began."""
    preserved_seconds: float = 0.0
    """How much of its running time is in a snapshot and has not been continued yet."""

    @property
    def over(self) -> bool:
        return self.ended_at is not None

    @property
    def succeeded(self) -> bool:
        """Whether it did its work; one that was told to end did not, whatever its exit code."""
        return self.exit_code == 0 and self.ending is None

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, badly, or could not begin."""
        return self.over and not self.succeeded and self.ending not in NO_FAILURES


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """A job's way out of its place."""

    cause: Cause = Cause.REQUEUED
    """What it is moved by once it is gone: requeued, or stopped until a person restores it."""
    preemptor: str | None = None
    signal: str | None = None
    """The signal by which the coordinator holds it; None: it is terminated plainly."""
    cancelled: bool = False
    """The preemptor needs the place no more; the coordinator was told."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job and everything that happened to it."""

    description: JobDescription
    phase: JobPhase = JobPhase.QUEUED
    why: str = ""
    """In words, what it waits for or how it ended."""
    runs: tuple[Run, ...] = ()
    leaving: Leaving | None = None
    snapshot_signal: str | None = None
    """A snapshot is being taken while the job runs on."""
    cancelling: bool = False
    claims: bool = False
    """A place is being freed for it."""
    preemptions: int = 0
    refusals: int = 0
    """How often in a row its snapshot could not be taken and it was left running."""
    protected_until: float = 0.0
    work_saved_seconds: float = 0.0
    wanted_generation: int | None = None
    attempts: int = 0
    """How often it was admitted."""
    void_attempts: int = 0
    """Attempts before a person had it begin again: what was finished in them does not count any more."""
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
    def current(self) -> tuple[Run, ...]:
        """The incarnations that are not over."""
        return tuple(run for run in self.runs if not run.over)

    @property
    def attempt(self) -> tuple[Run, ...]:
        """The incarnations of the last admission."""
        return tuple(run for run in self.runs if run.attempt == self.attempts)

    @property
    def broken(self) -> bool:
        """Whether a replica failed or vanished: the rest of the gang is being ended."""
        return any(run.failed or run.ending == LOST for run in self.attempt)

    @property
    def finished(self) -> frozenset[int]:
        """Replicas that have done their work; they are not started again with the others."""
        return frozenset(run.index for run in self.runs if run.succeeded and run.attempt > self.void_attempts)

    @property
    def request(self) -> Resources:
        """What the whole gang asks for; replicas that are done ask for nothing when it is started again."""
        placed = self.phase in PLACED_PHASES
        return self.description.request.times(
            len(self.attempt) if placed else self.description.replicas - len(self.finished)
        )

    def workload(self, run: Run, node: str) -> WorkloadRef:
        """How the coordinator knows one of its incarnations."""
        name = self.description.name
        label = name if self.description.replicas == 1 else f"{name}-{run.index}"
        return WorkloadRef(uid=run.uid, namespace=self.description.namespace, name=label, node=node)

    def with_run(self, changed: Run) -> Job:
        """The job with one incarnation replaced by its newer state, or with a new one."""
        if all(run.uid != changed.uid for run in self.runs):
            return replace(self, runs=(*self.runs, changed))
        return replace(self, runs=tuple(changed if run.uid == changed.uid else run for run in self.runs))


def step(job: Job, cause: Cause, why: str, **changes: Any) -> Job:
    """The job after `cause`; `why` is what its owner reads.

    Raises:
        IllegalTransitionError: the table does not know that step; the evidence is the job's incarnations.
    """
    phase = TRANSITIONS.get((job.phase, cause))
    if phase is None:
        history = tuple(f"{run.uid}: {run.ending or run.exit_code}" for run in job.runs)
        raise IllegalTransitionError(
            f"job {job.uid} cannot leave {job.phase.value} because {cause.value}", evidence=history
        )
    return replace(job, phase=phase, why=why, **changes)
