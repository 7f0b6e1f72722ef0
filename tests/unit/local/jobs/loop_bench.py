"""A scheduling loop on a machine that does nothing by itself: tests say what happens, and see what is asked."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled, Report, Starting
from cedana_sched.local.jobs.job import Job, JobPhase, Run
from cedana_sched.local.jobs.job_event_rules import RunEndDetails, RunStartDetails
from cedana_sched.local.jobs.journal import JournalUnavailableError, StateChanges
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.model import codec
from cedana_sched.model.preemption import Release, Signal, Verdict, WorkloadRef
from tests.unit.local.jobs.job_builders import TWO_GROUPS, configuration, submission


class MemoryJournal:
    """Keeps what it is given as bytes, as the real one does; `full` makes it fail."""

    def __init__(self) -> None:
        self._jobs: dict[str, bytes] = {}
        self._signals: dict[str, bytes] = {}
        self.full = False
        self.refused = asyncio.Event()
        self.events: list[str] = []

    async def load_jobs(self) -> tuple[Job, ...]:
        return tuple(codec.decode(body, Job) for body in self._jobs.values())

    async def load_signals(self) -> tuple[Signal, ...]:
        return tuple(codec.decode(body, Signal) for body in self._signals.values())

    async def save_changes(self, step: StateChanges) -> None:
        if self.full:
            self.refused.set()
            raise JournalUnavailableError("the disk is full")
        self._jobs |= {job.uid: codec.encode(job) for job in step.jobs}
        self._signals |= {signal.uid: codec.encode(signal) for signal in step.signals}
        for uid in step.settled_signals:
            self._signals.pop(uid, None)
        self.events += [event.reason for event in step.events]


class Bench:
    """The loop, what it asked for, and shorthands for what happens to it."""

    def __init__(self, groups: str = TWO_GROUPS, journal: MemoryJournal | None = None, first_uid: int = 1) -> None:
        self.first_uid = first_uid
        self.time = 1000.0
        self.journal = journal or MemoryJournal()
        self.started: list[str] = []
        self.terminated: list[str] = []
        self.reports: list[Report] = []
        numbers = itertools.count(first_uid)
        self.loop = SchedulingLoop(
            configuration(groups),
            self.journal,
            self,
            node="here",
            outputs=Path("/outputs"),
            now=lambda: self.time,
            new_uid=lambda: f"u{next(numbers)}",
        )
        self.pending = self.loop.subscribe(self.reports.append)

    async def restart(self, groups: str = TWO_GROUPS) -> Bench:
        """Another engine on the same journal; its `pending` is what it tells the coordinator first."""
        again = Bench(groups, self.journal, self.first_uid + 1000)
        again.time = self.time
        await again.loop.load()
        again.pending = again.loop.subscribe(again.reports.append)
        again.loop.unsubscribe(again.reports.append)
        await again.loop.resume_after_restart()
        return again

    def start(self, workload: WorkloadRef) -> None:
        self.started.append(workload.uid)

    def terminate(self, run: str) -> None:
        self.terminated.append(run)

    async def submit(self, name: str, group: str = "bio", **fields: Any) -> Job:
        self.time += 1
        return await self.loop.submit(submission(group, name=name, **fields))

    async def running(self, name: str, group: str = "bio", **fields: Any) -> Job:
        """Submit a job that fits, and have it begin."""
        await self.submit(name, group, **fields)
        return await self.begin(name)

    async def begin(self, name: str, **how: Any) -> Job:
        for run in self.job(name).active_runs:
            await self.loop.on_run_began(run.uid, RunStartDetails(self.time, **how))
        return self.job(name)

    async def end(self, name: str, exit_code: int | None = 0, *, index: int = 0, **how: Any) -> Job:
        run = next(run for run in self.job(name).active_runs if run.index == index)
        await self.loop.on_run_ended(run.uid, RunEndDetails(self.time, exit_code, **how))
        return self.job(name)

    async def release(self, verdict: Verdict, signal: Signal | None = None, why: str = "") -> None:
        """Release the newest signal, with one verdict for all its victims."""
        signal = signal or self.signals[-1]
        uids = [victim.workload.uid for victim in signal.victims]
        await self.loop.apply_release(Release(signal.uid, dict.fromkeys(uids, verdict), dict.fromkeys(uids, why)))

    def job(self, name: str) -> Job:
        return self.loop.find(name)

    def phase(self, name: str) -> JobPhase:
        return self.job(name).phase

    def run(self, name: str) -> Run:
        """The newest incarnation."""
        return self.job(name).runs[-1]

    @property
    def signals(self) -> list[Signal]:
        return [report.signal for report in self.reports if isinstance(report, Preempted)]

    @property
    def starting(self) -> list[Starting]:
        return [report for report in self.reports if isinstance(report, Starting)]

    @property
    def ended(self) -> list[str]:
        return [report.workload_uid for report in self.reports if isinstance(report, Ended)]

    @property
    def cancelled(self) -> list[str]:
        return [report.signal_uid for report in self.reports if isinstance(report, PreemptionCancelled)]
