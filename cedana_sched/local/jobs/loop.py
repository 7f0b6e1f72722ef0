"""The engine's scheduling loop: owns the jobs and processes one event at a time, with all of the event's effects.

    event ─► rules on a draft ─► decide ─► journal ─► book ─► reports to the coordinator, actions on the machine

The loop does not poll; its only timer is the end of a job's protection. If the journal cannot persist a user's
request, the request has no effect and the caller gets the journal's error. An event that the machine reports has
already happened, so its write is retried until it succeeds. `run_began` and `run_ended` are events of the runtime,
`released` is the adapter's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import structlog

from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.local.configuration import Configuration
from cedana_sched.local.jobs import evictions, requests, rules
from cedana_sched.local.jobs.book import Book, Draft, StartRun, TerminateRun
from cedana_sched.local.jobs.job import Job, JobPhase, Run
from cedana_sched.local.jobs.journal import Step
from cedana_sched.local.jobs.rules import Beginning, Ending
from cedana_sched.local.jobs.scheduling import reschedule
from cedana_sched.local.jobs.submission import describe
from cedana_sched.local.views import EventView, Submission
from cedana_sched.model.errors import NotFoundError, RetryableError
from cedana_sched.model.preemption import Release, Signal, WorkloadRef
from cedana_sched.retrying import CHORES, Backoff

log = structlog.get_logger(__name__)

T = TypeVar("T")


class LoopJournal(Protocol):
    """Durable storage of jobs and signals, such as `SqliteJournal`."""

    async def load_jobs(self) -> tuple[Job, ...]: ...
    async def load_signals(self) -> tuple[Signal, ...]: ...
    async def save_step(self, step: Step) -> None: ...


class RunControl(Protocol):
    """Control of runs on the machine. Both calls return at once, are idempotent, and complete by an event."""

    def start(self, workload: WorkloadRef) -> None:
        """Start a run of a job that is not opted in; completes by `run_began`, or by `run_ended` with a failure."""
        ...

    def terminate(self, run: str) -> None:
        """Send SIGTERM, and SIGKILL after the grace period; completes by `run_ended`."""
        ...


class Watcher(Protocol):
    """A subscriber to every persisted change; must not block."""

    def changed(self, jobs: tuple[Job, ...], events: tuple[EventView, ...]) -> None: ...


class SchedulingLoop:
    """The jobs of one engine. Call `load()` first, then `resume()` once the runtime and the adapter are subscribed."""

    def __init__(
        self,
        configuration: Configuration,
        journal: LoopJournal,
        control: RunControl,
        *,
        node: str,
        outputs: Path,
        now: Callable[[], float],
        new_uid: Callable[[], str] = lambda: uuid.uuid4().hex[:12],
    ) -> None:
        self.configuration = configuration
        self._journal = journal
        self._control = control
        self._node = node
        self._outputs = outputs
        self._now = now
        self._new_uid = new_uid
        self._watcher: Watcher | None = None
        self._book = Book()
        self._turn = asyncio.Lock()
        self._stepped = asyncio.Condition()
        self._sinks: list[Callable[[Report], None]] = []
        self._wake_at: float | None = None
        self._rearmed = asyncio.Event()

    # -- the engine's own

    def watch(self, watcher: Watcher) -> None:
        """Publish every change to `watcher` from now on."""
        self._watcher = watcher

    async def load(self) -> None:
        """Load the journal, without any action."""
        self._book = Book(await self._journal.load_jobs(), await self._journal.load_signals())

    async def resume(self) -> None:
        """Repeat actions that the previous engine may not have completed, then run a scheduling cycle."""
        await self._take(self._resume)

    async def run(self) -> NoReturn:
        """Run a scheduling cycle whenever a job's protection ends. Runs until cancelled."""
        while True:
            self._rearmed.clear()
            wait = None if self._wake_at is None else max(0.0, self._wake_at - self._now())
            try:
                async with asyncio.timeout(wait):
                    await self._rearmed.wait()
            except TimeoutError:
                await self._take_surely(lambda _: None)

    async def configure(self, configuration: Configuration) -> None:
        """Replace the configuration; it causes a preemption only if a queued job needs the place."""
        self.configuration = configuration
        await self._take(lambda _: None)

    # -- queries

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, in order of submission."""
        return tuple(sorted(self._book.jobs.values(), key=lambda job: (job.description.submitted_at, job.uid)))

    def find(self, key: str) -> Job:
        """Return a job by uid, uid prefix, name or checkpoint id.

        Raises:
            NotFoundError: no job matches.
            UsageError: the prefix matches several jobs.
        """
        return self._book.find(key)

    def owner_of(self, run: str) -> str | None:
        """Return the uid of the job that owns an incarnation; None if the incarnation is unknown."""
        return self._book.owner_of(run)

    def run_of(self, uid: str) -> tuple[Job, Run]:
        """Return an incarnation that has not ended, and its job.

        Raises:
            NotFoundError: the incarnation has ended or is unknown, and must not be started.
        """
        owner = self._book.owner_of(uid)
        job = self._book.jobs[owner] if owner is not None else None
        run = next((run for run in job.current if run.uid == uid), None) if job is not None else None
        if job is None or run is None:
            raise NotFoundError("run", uid, "is over or unknown", remedy="nothing is to be done for it")
        return job, run

    # -- requests of users

    async def submit(self, submission: Submission) -> Job:
        """Queue a job.

        Raises:
            UsageError: a field is invalid; the error names it.
        """
        uid = self._new_uid()

        def queue(draft: Draft) -> str:
            description = describe(submission, self.configuration, uid=uid, now=draft.now, outputs=self._outputs)
            return rules.submitted(draft, description).uid

        return self._book.jobs[await self._take(queue)]

    async def preempt(self, key: str) -> Job:
        """Preempt a job on request; see `requests.preempt_now`."""
        signal = self._new_signal_uid()
        return await self._ask(key, lambda d, job: requests.preempt_now(d, job, node=self._node, signal_uid=signal))

    async def checkpoint(self, key: str, *, leave_running: bool) -> str:
        """Take a snapshot on request and return the signal's uid; see `requests.checkpoint`."""
        signal = self._new_signal_uid()

        def ask(draft: Draft, job: Job) -> None:
            requests.checkpoint(draft, job, node=self._node, signal_uid=signal, leave_running=leave_running)

        await self._ask(key, ask)
        return signal

    async def restore(self, key: str, generation: int | None = None) -> Job:
        """Requeue a stopped or ended job; see `requests.restore`."""
        return await self._ask(key, lambda draft, job: requests.restore(draft, job, generation))

    async def cancel(self, key: str) -> Job:
        """End a job for good; see `requests.cancel`."""
        return await self._ask(key, requests.cancel)

    # -- events

    async def run_began(self, uid: str, beginning: Beginning) -> None:
        """Record that a run has started or was restored."""
        await self._take_surely(lambda draft: rules.run_began(draft, uid, beginning))

    async def run_ended(self, uid: str, ending: Ending) -> None:
        """Record that nothing of a run is left; afterwards the runtime may discard the run."""
        await self._take_surely(lambda draft: rules.run_ended(draft, uid, ending))

    async def snapshot_settled(self, signal_uid: str, *, committed: bool) -> None:
        """Record that the snapshot of a job that keeps running is terminal (such a signal is never released)."""
        await self._take_surely(lambda draft: evictions.snapshot_settled(draft, signal_uid, committed=committed))

    async def until_settled(self, signal_uid: str) -> None:
        """Wait until all effects of a signal on its jobs are complete."""
        async with self._stepped:
            await self._stepped.wait_for(lambda: signal_uid not in self._book.signals)

    # -- the adapter's backend

    def subscribe(self, sink: Callable[[Report], None]) -> tuple[Report, ...]:
        """Return all pending reports; `sink` receives all later ones, without a gap."""
        self._sinks.append(sink)
        return self._pending_reports()

    def unsubscribe(self, sink: Callable[[Report], None]) -> None:
        """Stop reports to `sink`."""
        self._sinks.remove(sink)

    async def released(self, release: Release) -> None:
        """Apply the coordinator's release of a preemption."""
        await self._take(lambda draft: evictions.released(draft, release))

    # -- one turn

    async def _ask(self, key: str, rule: Callable[[Draft, Job], None]) -> Job:
        def apply(draft: Draft) -> str:
            job = self._book.find(key)
            rule(draft, job)
            return job.uid

        return self._book.jobs[await self._take(apply)]

    async def _take(self, rule: Callable[[Draft], T]) -> T:
        """Process one event, to completion even if the caller is cancelled meanwhile."""
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(rule)))

    async def _take_surely(self, rule: Callable[[Draft], None]) -> None:
        """Process an event that has already happened: retry until the journal persists it."""
        backoff = Backoff(CHORES)
        while True:
            try:
                return await self._take(rule)
            except RetryableError as error:
                pause = backoff.next_pause()
                log.warning("journal cannot be written, trying again", problem=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)

    async def _in_turn(self, rule: Callable[[Draft], T]) -> T:
        async with self._turn:
            draft = Draft(self._book, self._now())
            result = rule(draft)
            wake_at = reschedule(draft, self.configuration.cohort, node=self._node, new_uid=self._new_uid)
            if draft.changed:
                await self._journal.save_step(draft.step)
            self._book.apply(draft)
            self._arm(wake_at)
            self._act(draft)
        async with self._stepped:
            self._stepped.notify_all()
        return result

    def _arm(self, wake_at: float | None) -> None:
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self._rearmed.set()

    def _act(self, draft: Draft) -> None:
        for report in draft.reports:
            for sink in tuple(self._sinks):
                sink(report)
        for action in draft.actions:
            if isinstance(action, StartRun):
                self._control.start(action.workload)
            else:
                self._control.terminate(action.run)
        if self._watcher is not None and draft.changed:
            self._watcher.changed(tuple(draft.jobs.values()), tuple(draft.events))

    def _resume(self, draft: Draft) -> None:
        for job in draft.all_jobs():
            if job.phase is JobPhase.STARTING and job.description.id is None:
                rules.begin_again(draft, job, self._node)
            going = job.cancelling or job.broken or job.leaving is not None
            if going and not evictions.is_held(job):
                draft.actions += [TerminateRun(run.uid) for run in job.current if run.began_at is not None]

    def _pending_reports(self) -> tuple[Report, ...]:
        """Return all reports that the coordinator may have missed: ends first, then starts, then preemptions."""
        ended: list[Report] = []
        begun: list[Report] = []
        for job in self.jobs:
            if job.description.id is None:
                continue
            ended += [rules.ended(run, run.ending or "ended") for run in job.runs if run.over]
            for run in job.current:
                report = rules.starting(job, run, job.workload(run, self._node))
                if report is not None and run.began_at is None:
                    begun.append(report)
        signals = [Preempted(signal) for signal in self._book.signals.values()]
        off = {job.leaving.signal for job in self.jobs if job.leaving is not None and job.leaving.cancelled}
        why = "the place is not needed any more"
        cancelled = [PreemptionCancelled(uid, why) for uid in sorted(uid for uid in off if uid is not None)]
        return (*ended, *begun, *signals, *cancelled)

    def _new_signal_uid(self) -> str:
        return f"sig-{self._new_uid()}"
