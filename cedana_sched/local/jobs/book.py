"""What the scheduling loop knows, and a draft of what one event changes in it.

A draft is filled by the rules, written to the journal as one step, and only then applied and acted upon: what
the book says is always what the journal says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cedana_sched.adapter.contract import Report
from cedana_sched.local.jobs.job import Job, Run
from cedana_sched.local.jobs.journal import ENDED_JOBS_KEPT, Step
from cedana_sched.local.views import EventView
from cedana_sched.model.errors import NotFoundError, UsageError
from cedana_sched.model.preemption import Signal, WorkloadRef


class StartRun(msgspec.Struct, frozen=True):
    """Start a run of a job that is not opted in; the others are started by the coordinator."""

    workload: WorkloadRef


class TerminateRun(msgspec.Struct, frozen=True):
    """Ask a run to end, and kill it after its grace."""

    run: str


Action = StartRun | TerminateRun
"""What the machine is to do."""


class Book:
    """All jobs and unsettled signals, as the journal has them."""

    def __init__(self, jobs: Iterable[Job] = (), signals: Iterable[Signal] = ()) -> None:
        self.jobs = {job.uid: job for job in jobs}
        self.signals = {signal.uid: signal for signal in signals}
        self._job_of_run = {run.uid: job.uid for job in self.jobs.values() for run in job.runs}

    def apply(self, draft: Draft) -> None:
        """Take over what was written."""
        self.jobs |= draft.jobs
        for job in draft.jobs.values():
            self._job_of_run |= {run.uid: job.uid for run in job.runs}
        self.signals |= draft.signals
        for uid in draft.settled:
            self.signals.pop(uid, None)
        if len(self.jobs) > 2 * ENDED_JOBS_KEPT:
            self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        """An engine that runs for months remembers as many ended jobs as its journal does at each start."""
        ended = [job for job in self.jobs.values() if not job.live]
        if len(ended) <= 2 * ENDED_JOBS_KEPT:
            return
        for job in sorted(ended, key=lambda job: job.ended_at or 0.0)[:-ENDED_JOBS_KEPT]:
            del self.jobs[job.uid]
            for run in job.runs:
                del self._job_of_run[run.uid]

    def owner_of(self, run: str) -> str | None:
        """The uid of the job that an incarnation belongs to."""
        return self._job_of_run.get(run)

    def find(self, key: str) -> Job:
        """A job by uid, name or checkpoint id (newest first), or by an unambiguous beginning of its uid.

        Raises:
            NotFoundError: there is none.
            UsageError: several jobs' uids begin so.
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
    """What one event changes; reads fall through to the book."""

    def __init__(self, book: Book, now: float) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.signals: dict[str, Signal] = {}
        self.settled: list[str] = []
        self.events: list[EventView] = []
        self.reports: list[Report] = []
        self.actions: list[Action] = []
        self._book = book

    def job(self, uid: str) -> Job:
        return self.jobs[uid] if uid in self.jobs else self._book.jobs[uid]

    def all_jobs(self) -> Iterator[Job]:
        for uid in [*self._book.jobs, *(uid for uid in self.jobs if uid not in self._book.jobs)]:
            yield self.job(uid)

    def run(self, uid: str) -> tuple[Job, Run] | None:
        """An incarnation and its job; None for one that was never ours, or is forgotten."""
        owner = self._book.owner_of(uid)
        if owner is None:
            return None
        job = self.job(owner)
        return job, next(run for run in job.runs if run.uid == uid)

    def put(self, job: Job) -> Job:
        self.jobs[job.uid] = job
        return job

    def unsettled(self, uid: str) -> Signal | None:
        """A signal that waits for its release."""
        return None if uid in self.settled else self.signals.get(uid) or self._book.signals.get(uid)

    def settle(self, signal: Signal) -> None:
        self.signals.pop(signal.uid, None)
        self.settled.append(signal.uid)

    def tell(self, job: Job, reason: str, text: str, *, warning: bool = False) -> None:
        """Write down something that a person wants to know; `reason` is a CamelCase constant."""
        self.events.append(EventView(self.now, reason, text, warning=warning, job=job.uid))

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.jobs or self.signals or self.settled or self.events)

    @property
    def step(self) -> Step:
        return Step(tuple(self.jobs.values()), tuple(self.signals.values()), tuple(self.settled), tuple(self.events))
