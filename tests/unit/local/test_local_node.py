"""The machine as the loop sees it: what is to be done is done, whatever is in the way at first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cedana_sched.local.local_node import BackgroundRunControl, forward_run_events
from cedana_sched.local.runs.run_directory import ExitRecord
from cedana_sched.local.runs.runtime import RunBegan, RunEnded
from cedana_sched.model.errors import NotFoundError
from cedana_sched.model.preemption import WorkloadRef
from tests.pauses import shorten_pauses

WORKLOAD = WorkloadRef("job-r0", "default", "job", "local")


class FakeRuntime:
    """Fails as often as it is told to; `changes` are what has happened."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)
        self.calls = 0
        self.done = asyncio.Event()
        self.happened: list[RunBegan | RunEnded] = []
        self.forgotten: list[str] = []

    async def start_cold(self, workload: WorkloadRef, why: str | None) -> None:
        self.calls += 1
        if self.problems:
            raise self.problems.pop(0)
        self.done.set()

    async def terminate(self, uid: str, grace_seconds: float) -> None:
        self.done.set()
        await asyncio.Event().wait()

    async def changes(self) -> AsyncIterator[RunBegan | RunEnded]:
        for change in self.happened:
            yield change

    async def discard_run(self, uid: str) -> None:
        self.forgotten.append(uid)


def control(runtime: Any) -> BackgroundRunControl:
    return BackgroundRunControl(runtime)


async def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    runtime = FakeRuntime(OSError("the disk is full"), RuntimeError("a defect"))
    control(runtime).start(WORKLOAD)
    await runtime.done.wait()
    assert runtime.calls == 3


async def test_a_run_that_ended_before_it_began_is_left_alone() -> None:
    runtime = FakeRuntime(NotFoundError("run", "job-r0", "is over", remedy="nothing"))
    owner = control(runtime)
    owner.start(WORKLOAD)
    await asyncio.gather(*owner._tasks)
    assert runtime.calls == 1


async def test_closing_does_not_wait_for_a_job_that_does_not_end() -> None:
    runtime = FakeRuntime()
    owner = control(runtime)
    owner.terminate("job-r0")
    await runtime.done.wait()
    async with asyncio.timeout(60):
        await owner.close()


async def test_one_run_that_cannot_be_taken_in_does_not_silence_the_others() -> None:
    runtime: Any = FakeRuntime()
    runtime.happened = [RunEnded("bad", ExitRecord(1.0, exit_code=0)), RunEnded("good", ExitRecord(2.0, exit_code=0))]
    taken = []

    class Loop:
        async def on_run_ended(self, uid: str, ending: object) -> None:
            if uid == "bad":
                raise RuntimeError("a defect")
            taken.append(uid)

    class Inspections:
        def on_run_ended(self, uid: str) -> None: ...

    loop: Any = Loop()
    inspections: Any = Inspections()
    await forward_run_events(runtime, loop, lambda _: None, inspections)
    assert (taken, runtime.forgotten) == (["good"], ["good"])
