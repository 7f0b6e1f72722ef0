"""The engine's scheduling loop: owns the jobs and processes one event at a time, with all of the event's effects.

    event ─► rules on a draft ─► decide ─► journal ─► state ─► reports to the coordinator, actions on the machine

The loop does not poll; its only timer is the end of a job's protection. If the journal cannot persist a user's request,
the request has no effect and the caller gets the journal's error. An event that the machine reports has already
happened, so its write is retried until it succeeds. `on_run_began` and `on_run_ended` are events of the runtime,
`apply_release` is the adapter's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import structlog

from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.coordinator.snapshot_schedule import RunningWorkload
from cedana_sched.local.configuration import Configuration
from cedana_sched.local.jobs import due_snapshots, evictions, job_event_rules, requests
from cedana_sched.local.jobs.job import Job, JobPhase, Run, RunObstacle
from cedana_sched.local.jobs.job_event_rules import RunEndDetails, RunStartDetails
from cedana_sched.local.jobs.journal import StateChanges
from cedana_sched.local.jobs.loop_state import Draft, LoopState, StartRun, TerminateRun
from cedana_sched.local.jobs.scheduling import run_scheduling_cycle
from cedana_sched.local.jobs.submission import create_job_description
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
    async def save_changes(self, step: StateChanges) -> None: ...


class RunControl(Protocol):
    """Control of runs on the machine. Both calls return at once, are idempotent, and complete by an event."""

    def start(self, workload: WorkloadRef) -> None:
        """Start a run of a job that is not opted in; ends in `on_run_began`, or in `on_run_ended` with a failure."""
        ...

    def terminate(self, run: str) -> None:
        """Send SIGTERM, and SIGKILL after the grace period; completes by `on_run_ended`."""
        ...


class Watcher(Protocol):
    """A subscriber to every persisted change; must not block."""

    def on_changes(self, jobs: tuple[Job, ...], events: tuple[EventView, ...]) -> None: ...


class SchedulingLoop:
    """The jobs of one engine. Call `load`, then `resume_after_restart` once runtime and adapter are subscribed."""

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
        self._watchers: list[Watcher] = []
        self._state = LoopState()
        self._turn = asyncio.Lock()
        self._stepped = asyncio.Condition()
        self._sinks: list[Callable[[Report], None]] = []
        self._wake_at: float | None = None
        self._rearmed = asyncio.Event()

    # -- the engine's own

    def add_watcher(self, watcher: Watcher) -> None:
        """Publish every change to `watcher` too from now on."""
        self._watchers.append(watcher)

    async def load(self) -> None:
        """Load the journal, without any action."""
        self._state = LoopState(await self._journal.load_jobs(), await self._journal.load_signals())

    async def resume_after_restart(self) -> None:
        """Repeat actions that the previous engine may not have completed, then run a scheduling cycle."""
        await self._process_event(self._repeat_unfinished_actions)

    async def run(self) -> NoReturn:
        """Run a scheduling cycle whenever a job's protection ends. Runs until cancelled."""
        while True:
            self._rearmed.clear()
            wait = None if self._wake_at is None else max(0.0, self._wake_at - self._now())
            try:
                async with asyncio.timeout(wait):
                    await self._rearmed.wait()
            except TimeoutError:
                await self._process_event_with_retries(lambda _: None)

    async def configure(self, configuration: Configuration) -> None:
        """Replace the configuration; it causes a preemption only if a queued job needs the place."""
        self.configuration = configuration
        await self._process_event(lambda _: None)

    # -- queries

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, in order of submission."""
        return tuple(sorted(self._state.jobs.values(), key=lambda job: (job.description.submitted_at, job.uid)))

    def find(self, key: str) -> Job:
        """Return a job by uid, uid prefix, name or checkpoint id.

        Raises:
            NotFoundError: no job matches.
            UsageError: the prefix matches several jobs.
        """
        return self._state.find(key)

    def job_uid_of_run(self, run: str) -> str | None:
        """Return the uid of the job that owns an incarnation; None if the incarnation is unknown."""
        return self._state.job_uid_of_run(run)

    def find_active_run(self, uid: str) -> tuple[Job, Run]:
        """Return an incarnation that has not ended, and its job.

        Raises:
            NotFoundError: the incarnation has ended or is unknown, and must not be started.
        """
        owner = self._state.job_uid_of_run(uid)
        job = self._state.jobs[owner] if owner is not None else None
        run = next((run for run in job.active_runs if run.uid == uid), None) if job is not None else None
        if job is None or run is None:
            raise NotFoundError("run", uid, "is over or unknown", remedy="nothing is to be done for it")
        return job, run

    def workloads_with_interval(self) -> tuple[RunningWorkload, ...]:
        """Return the running incarnations whose policy has an interval."""
        return tuple(due_snapshots.workloads_with_interval(self._state.jobs.values(), self._node))

    # -- requests of users

    async def submit(self, submission: Submission) -> Job:
        """Queue a job.

        Raises:
            UsageError: a field is invalid; the error names it.
        """
        uid = self._new_uid()

        def queue(draft: Draft) -> str:
            description = create_job_description(
                submission, self.configuration, uid=uid, now=draft.now, outputs=self._outputs
            )
            return job_event_rules.queue_job(draft, description).uid

        return self._state.jobs[await self._process_event(queue)]

    async def preempt(self, key: str) -> Job:
        """Preempt a job on request; see `requests.preempt_now`."""
        signal = self._new_signal_uid()
        return await self._process_request(
            key, lambda d, job: requests.preempt_now(d, job, node=self._node, signal_uid=signal)
        )

    async def checkpoint(self, key: str, *, leave_running: bool) -> str:
        """Take a snapshot on request and return the signal's uid; see `requests.checkpoint`."""
        signal = self._new_signal_uid()

        def request_checkpoint(draft: Draft, job: Job) -> None:
            requests.checkpoint(draft, job, node=self._node, signal_uid=signal, leave_running=leave_running)

        await self._process_request(key, request_checkpoint)
        return signal

    async def restore(self, key: str, generation: int | None = None) -> Job:
        """Requeue a stopped or ended job; see `requests.restore`."""
        return await self._process_request(key, lambda draft, job: requests.restore(draft, job, generation))

    async def cancel(self, key: str) -> Job:
        """End a job for good; see `requests.cancel`."""
        return await self._process_request(key, requests.cancel)

    # -- events

    async def on_run_began(self, uid: str, beginning: RunStartDetails) -> None:
        """Record that a run has started or was restored."""
        await self._process_event_with_retries(lambda draft: job_event_rules.on_run_began(draft, uid, beginning))

    async def on_run_ended(self, uid: str, ending: RunEndDetails) -> None:
        """Record that nothing of a run is left; afterwards the runtime may discard the run."""
        await self._process_event_with_retries(lambda draft: job_event_rules.on_run_ended(draft, uid, ending))

    async def on_run_inspected(self, uid: str, obstacle: RunObstacle | None) -> None:
        """Record what a checkpoint of a run would fail for; None: nothing was found.

        Raises:
            RetryableError: the journal cannot be written now.
        """
        await self._process_event(lambda draft: job_event_rules.on_run_inspected(draft, uid, obstacle))

    async def on_snapshot_terminal(self, signal_uid: str, *, committed: bool) -> None:
        """Record that the snapshot of a job that keeps running is terminal (such a signal is never released)."""
        await self._process_event_with_retries(
            lambda draft: evictions.on_snapshot_terminal(draft, signal_uid, committed=committed)
        )

    async def take_periodic_snapshot(self, signal: Signal) -> None:
        """Have a due snapshot taken; without effect if its job does not run on, or is being checkpointed already."""
        await self._process_event_with_retries(lambda draft: due_snapshots.report_due_snapshot(draft, signal))

    async def wait_until_signal_closed(self, signal_uid: str) -> None:
        """Wait until all effects of a signal on its jobs are complete."""
        async with self._stepped:
            await self._stepped.wait_for(lambda: signal_uid not in self._state.signals)

    # -- the adapter's backend

    def subscribe(self, sink: Callable[[Report], None]) -> tuple[Report, ...]:
        """Return all pending reports; `sink` receives all later ones, without a gap."""
        self._sinks.append(sink)
        return self._pending_reports()

    def unsubscribe(self, sink: Callable[[Report], None]) -> None:
        """Stop reports to `sink`."""
        self._sinks.remove(sink)

    async def apply_release(self, release: Release) -> None:
        """Apply the coordinator's release of a preemption."""
        await self._process_event(lambda draft: evictions.apply_release(draft, release))

    # -- one turn

    async def _process_request(self, key: str, rule: Callable[[Draft, Job], None]) -> Job:
        def apply(draft: Draft) -> str:
            job = self._state.find(key)
            rule(draft, job)
            return job.uid

        return self._state.jobs[await self._process_event(apply)]

    async def _process_event(self, rule: Callable[[Draft], T]) -> T:
        """Process one event, to completion even if the caller is cancelled meanwhile."""
        return await asyncio.shield(asyncio.ensure_future(self._process_event_exclusively(rule)))

    async def _process_event_with_retries(self, rule: Callable[[Draft], None]) -> None:
        """Process an event that has already happened: retry until the journal persists it."""
        backoff = Backoff(CHORES)
        while True:
            try:
                return await self._process_event(rule)
            except RetryableError as error:
                pause = backoff.next_pause()
                log.warning("journal cannot be written, trying again", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)

    async def _process_event_exclusively(self, rule: Callable[[Draft], T]) -> T:
        async with self._turn:
            draft = Draft(self._state, self._now())
            result = rule(draft)
            wake_at = run_scheduling_cycle(draft, self.configuration.cohort, node=self._node, new_uid=self._new_uid)
            if draft.has_changes:
                await self._journal.save_changes(draft.changes)
            self._state.apply(draft)
            self._set_wake_time(wake_at)
            self._perform_effects(draft)
        async with self._stepped:
            self._stepped.notify_all()
        return result

    def _set_wake_time(self, wake_at: float | None) -> None:
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self._rearmed.set()

    def _perform_effects(self, draft: Draft) -> None:
        for report in draft.reports:
            for sink in tuple(self._sinks):
                sink(report)
        for action in draft.actions:
            if isinstance(action, StartRun):
                self._control.start(action.workload)
            else:
                self._control.terminate(action.run)
        for watcher in self._watchers if draft.has_changes else ():
            watcher.on_changes(tuple(draft.jobs.values()), tuple(draft.events))

    def _repeat_unfinished_actions(self, draft: Draft) -> None:
        for job in draft.all_jobs():
            if job.phase is JobPhase.STARTING and job.description.id is None:
                job_event_rules.start_unstarted_runs(draft, job, self._node)
            going = job.cancelling or job.has_failed_replica or job.leaving is not None
            if going and not evictions.is_held(job):
                draft.actions += [TerminateRun(run.uid) for run in job.active_runs if run.began_at is not None]

    def _pending_reports(self) -> tuple[Report, ...]:
        """Return all reports that the coordinator may have missed: ends first, then starts, then preemptions."""
        ended: list[Report] = []
        begun: list[Report] = []
        for job in self.jobs:
            if job.description.id is None:
                continue
            ended += [
                job_event_rules.report_of_run_end(run, run.ending or "ended") for run in job.runs if run.has_ended
            ]
            for run in job.active_runs:
                report = job_event_rules.report_of_run_start(job, run, job.workload(run, self._node))
                if report is not None and run.began_at is None:
                    begun.append(report)
        signals = [Preempted(signal) for signal in self._state.signals.values()]
        off = {job.leaving.signal for job in self.jobs if job.leaving is not None and job.leaving.cancelled}
        why = "the place is not needed any more"
        cancelled = [PreemptionCancelled(uid, why) for uid in sorted(uid for uid in off if uid is not None)]
        return (*ended, *begun, *signals, *cancelled)

    def _new_signal_uid(self) -> str:
        return f"sig-{self._new_uid()}"
