"""Random histories of the scheduling loop: jobs, releases, deaths and restarts in any order; what always holds."""

from __future__ import annotations

import contextlib
import random

import pytest

from cedana_sched.local.jobs.job import PLACED_PHASES, Job, JobPhase
from cedana_sched.local.jobs.job_event_rules import RunEndDetails, RunStartDetails
from cedana_sched.local.scheduler.resources import Resource
from cedana_sched.model.errors import UsageError
from cedana_sched.model.preemption import AfterCommit, Release, Signal, Verdict
from tests.unit.local.jobs.loop_bench import Bench

STEPS = 60


class History:
    """A loop, a coordinator that answers whenever it likes, and a machine on which processes come and go."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench()
        self.signals: dict[str, Signal] = {}
        self.known_signals: set[str] = set()
        self.number = 0

    async def step(self) -> None:
        acts = [self.submit, self.begin, self.begin, self.release, self.release, self.end, self.ask, self.wait]
        acts += [self.restart] if self.dice.random() < 0.2 else []
        with contextlib.suppress(UsageError):  # asked of a job that could not: refusing is right
            await self.dice.choice(acts)()
        self.hear()
        self.check()

    async def submit(self) -> None:
        self.number += 1
        await self.bench.submit(
            f"job{self.number}",
            self.dice.choice(("bio", "ml")),
            cpus=self.dice.choice(("0.5", "1", "2", "3")),
            priority=self.dice.randint(0, 2),
            replicas=1 if self.dice.random() < 0.8 else 2,
        ) if self.dice.random() < 0.6 else None

    async def begin(self) -> None:
        waiting = [run for job in self.jobs for run in job.active_runs if run.began_at is None]
        if waiting:
            restored = self.dice.random() < 0.5
            await self.bench.loop.on_run_began(
                self.dice.choice(waiting).uid, RunStartDetails(self.bench.time, restored)
            )

    async def end(self) -> None:
        terminated = set(self.bench.terminated)
        runs = [run for job in self.jobs for run in job.active_runs if run.began_at is not None]
        asked = [run for run in runs if run.uid in terminated]
        if runs:
            run = self.dice.choice(asked or runs)
            kind = self.dice.choice(((0, False), (1, False), (None, True)))
            await self.bench.loop.on_run_ended(run.uid, RunEndDetails(self.bench.time, kind[0], lost=kind[1]))

    async def release(self) -> None:
        held = [signal for signal in self.signals.values() if signal.after_commit is AfterCommit.STOP]
        if not held:
            return
        signal = self.dice.choice(held)
        verdicts = {v.workload.uid: self.dice.choice(tuple(Verdict)) for v in signal.victims}
        if self.dice.random() < 0.6:
            verdicts = dict.fromkeys(verdicts, Verdict.COMMITTED)
        release = Release(signal.uid, verdicts)
        await self.bench.loop.apply_release(release)
        if self.dice.random() < 0.5:
            await self.bench.loop.apply_release(release)
        del self.signals[signal.uid]

    async def ask(self) -> None:
        if not self.jobs:
            return
        key, loop = self.dice.choice(self.jobs).uid, self.bench.loop
        match self.dice.randint(0, 4):
            case 0:
                await loop.cancel(key)
            case 1:
                await loop.preempt(key)
            case 2:
                await loop.restore(key)
            case 3:
                await loop.checkpoint(key, leave_running=False)
            case 4:
                await loop.on_snapshot_terminal(await loop.checkpoint(key, leave_running=True), committed=True)

    async def wait(self) -> None:
        self.bench.time += self.dice.choice((1, 40, 1000))
        await self.bench.loop.resume_after_restart()

    async def restart(self) -> None:
        self.bench = await self.bench.restart()
        pending = {getattr(report, "signal", None) for report in self.bench.pending}
        assert {signal for signal in self.signals.values() if signal.after_commit is AfterCommit.STOP} <= pending

    def hear(self) -> None:
        """The coordinator takes in new signals; none comes twice under another content."""
        for signal in self.bench.signals:
            if signal.uid not in self.known_signals:
                self.known_signals.add(signal.uid)
                self.signals[signal.uid] = signal

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.bench.loop.jobs

    def check(self) -> None:
        self._check_quota()
        for job in self.jobs:
            placed = job.phase in PLACED_PHASES
            assert bool(job.active_runs) <= placed, f"{job.uid} is {job.phase} with runs that go on"
            if job.leaving is not None and job.leaving.signal is not None:
                assert job.leaving.signal in self.signals, "a job waits for a release that nobody will give"
                assert not {run.uid for run in job.active_runs} & set(self.bench.terminated), (
                    "a held job was terminated"
                )
            if job.phase is JobPhase.PREEMPTING:
                assert job.leaving is not None
            elif not placed:
                assert job.leaving is None
            indexes = [run.index for run in job.active_runs]
            assert len(indexes) == len(set(indexes)), "two incarnations of one replica at a time"
        ids = [(j.description.namespace, j.description.id) for j in self.jobs if j.live and j.description.id]
        assert len(ids) == len(set(ids)), "two live jobs have one id"

    def _check_quota(self) -> None:
        capacity = self.bench.loop.configuration.capacity.resources
        for resource in Resource:
            used = sum(job.gang_request[resource] for job in self.jobs if job.phase in PLACED_PHASES)
            assert used <= capacity[resource]

    async def settle(self) -> None:
        """Everybody answers in the end: then no job is left half way."""
        for _ in range(400):
            if not any(job.phase in PLACED_PHASES for job in self.jobs):
                break
            self.bench.time += 1000
            for signal in list(self.signals.values()):
                verdicts = dict.fromkeys((v.workload.uid for v in signal.victims), Verdict.COMMITTED)
                await self.bench.loop.apply_release(Release(signal.uid, verdicts))
                del self.signals[signal.uid]
            for job in self.jobs:
                for run in job.active_runs:
                    await self.bench.loop.on_run_began(run.uid, RunStartDetails(self.bench.time))
                    if not (job.leaving and job.leaving.signal):
                        await self.bench.loop.on_run_ended(run.uid, RunEndDetails(self.bench.time, 0))
            self.hear()
            self.check()
        assert not [job for job in self.jobs if job.phase in PLACED_PHASES | {JobPhase.QUEUED}]


@pytest.mark.parametrize("block", range(4))
async def test_every_history_keeps_the_promises_and_comes_to_an_end(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        history = History(seed)
        for _ in range(STEPS):
            await history.step()
        await history.settle()
