"""In-memory state of the scheduling loop, and the draft of what one event changes in that state.

The rules fill a draft; the loop writes the draft to the journal as one step, then applies it to the state and acts
on it. The state therefore always equals the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cedana_sched.adapter.contract import Report
from cedana_sched.local.jobs.job import Job, Run
from cedana_sched.local.jobs.journal import ENDED_JOBS_KEPT, StateChanges
from cedana_sched.local.views import EventView
from cedana_sched.model.errors import NotFoundError, UsageError
from cedana_sched.model.preemption import Signal, WorkloadRef


class StartRun(msgspec.Struct, frozen=True):
    """Start a run of a job that is not opted in; the coordinator starts all others."""

    workload: WorkloadRef


class TerminateRun(msgspec.Struct, frozen=True):
    """Terminate a run: SIGTERM, then SIGKILL after the grace period."""

    run: str


Action = StartRun | TerminateRun
"""An action to perform on the machine."""


class LoopState:
    """All jobs and open signals, as in the journal."""

    def __init__(self, jobs: Iterable[Job] = (), signals: Iterable[Signal] = ()) -> None:
        self.jobs = {job.uid: job for job in jobs}
        self.signals = {signal.uid: signal for signal in signals}
        self._job_of_run = {run.uid: job.uid for job in self.jobs.values() for run in job.runs}

    def apply(self, draft: Draft) -> None:
        """Apply a draft that the journal has persisted."""
        self.jobs |= draft.jobs
        for job in draft.jobs.values():
            self._job_of_run |= {run.uid: job.uid for run in job.runs}
        self.signals |= draft.signals
        for uid in draft.settled:
            self.signals.pop(uid, None)
        if len(self.jobs) > 2 * ENDED_JOBS_KEPT:
            self._prune_ended_jobs()

    def _prune_ended_jobs(self) -> None:
        """Prune ended jobs to the number that the journal keeps, to bound the memory of a long-running engine."""
        ended = [job for job in self.jobs.values() if not job.live]
        if len(ended) <= 2 * ENDED_JOBS_KEPT:
            return
        for job in sorted(ended, key=lambda job: job.ended_at or 0.0)[:-ENDED_JOBS_KEPT]:
            del self.jobs[job.uid]
            for run in job.runs:
                del self._job_of_run[run.uid]

    def job_uid_of_run(self, run: str) -> str | None:
        """Return the uid of the job that owns an incarnation."""
        return self._job_of_run.get(run)

    def find(self, key: str) -> Job:
        """Return a job by uid, name or checkpoint id (newest first), or by an unambiguous prefix of its uid.

        Raises:
            NotFoundError: no job matches.
            UsageError: the prefix matches several jobs.
        """
        if key in self.jobs:
            return self.jobs[key]
        newest = sorted(self.jobs.values(), key=lambda job: (job.live, job.description.submitted_at), reverse=True)
        for job in newest:
            if key in {job.description.name, job.description.id}:
                return job
        begin_so = [job for job in newest if key and job.uid.startswith(key)]
        if len(begin_so) > 1:
            choice = ", ".join(job.uid for job in begin_so[:5])
            raise UsageError("job", key, "is the beginning of several jobs' uids", remedy=f"choose: {choice}")
        if not begin_so:
            raise NotFoundError("job", key, "is not known", remedy="see 'cedana-sched ps' for those that are")
        return begin_so[0]


class Draft:
    """The changes of one event; reads fall through to the state."""

    def __init__(self, state: LoopState, now: float) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.signals: dict[str, Signal] = {}
        self.settled: list[str] = []
        self.events: list[EventView] = []
        self.reports: list[Report] = []
        self.actions: list[Action] = []
        self._state = state

    def job(self, uid: str) -> Job:
        return self.jobs[uid] if uid in self.jobs else self._state.jobs[uid]

    def all_jobs(self) -> Iterator[Job]:
        for uid in [*self._state.jobs, *(uid for uid in self.jobs if uid not in self._state.jobs)]:
            yield self.job(uid)

    def find_run(self, uid: str) -> tuple[Job, Run] | None:
        """Return an incarnation and its job; None if the state never had the incarnation or has pruned it."""
        owner = self._state.job_uid_of_run(uid)
        if owner is None:
            return None
        job = self.job(owner)
        return job, next(run for run in job.runs if run.uid == uid)

    def put(self, job: Job) -> Job:
        self.jobs[job.uid] = job
        return job

    def find_open_signal(self, uid: str) -> Signal | None:
        """Return a signal that awaits its release."""
        return None if uid in self.settled else self.signals.get(uid) or self._state.signals.get(uid)

    def close_signal(self, signal: Signal) -> None:
        self.signals.pop(signal.uid, None)
        self.settled.append(signal.uid)

    def add_event(self, job: Job, reason: str, text: str, *, warning: bool = False) -> None:
        """Record an event for the user; `reason` is a CamelCase constant."""
        self.events.append(EventView(self.now, reason, text, warning=warning, job=job.uid))

    @property
    def has_changes(self) -> bool:
        """Whether the draft has anything to persist."""
        return bool(self.jobs or self.signals or self.settled or self.events)

    @property
    def changes(self) -> StateChanges:
        return StateChanges(
            tuple(self.jobs.values()), tuple(self.signals.values()), tuple(self.settled), tuple(self.events)
        )
