"""A runtime with real supervisors, namespaces and control groups, and the proof that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cedana_sched.local.cgroup_site import CgroupSite
from cedana_sched.local.job_task import JobSpec
from cedana_sched.local.run_directory import ExitRecord
from cedana_sched.local.runtime import LocalRuntime, RunBegan, RunChange, RunEnded
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot.toolchain import Toolchain

TIMEOUT_SECONDS = 30


class Lab:
    """One engine's runtime, and the jobs it knows."""

    def __init__(self, state: Path, toolchain: Toolchain) -> None:
        self.state = state
        self.toolchain = toolchain
        self.jobs: dict[str, JobSpec] = {}
        self.runtime = self._new_runtime()
        self.seen: list[RunChange] = []
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()

    def _new_runtime(self) -> LocalRuntime:
        return LocalRuntime(self.state, self.toolchain, self._job_of)

    async def _job_of(self, workload: WorkloadRef) -> JobSpec:
        return self.jobs[workload.uid]

    async def open(self) -> None:
        await self.runtime.adopt()
        self._reader = asyncio.create_task(self._read(), name="reader of changes")

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self.runtime.close()

    async def restart(self) -> None:
        """Another engine takes over; the first saw nothing coming."""
        await self.close()
        self.seen.clear()
        self.runtime = self._new_runtime()
        await self.open()

    def job(self, uid: str, *argv: str, **fields: object) -> WorkloadRef:
        """Make a job known whose output goes to `out(uid)`."""
        out = self.out(uid)
        self.jobs[uid] = JobSpec(argv=argv, stdout=out, stderr=out, directory=Path("/"), **fields)  # type: ignore[arg-type]
        return WorkloadRef(uid, "test", uid, "here")

    def shell(self, uid: str, script: str, **fields: object) -> WorkloadRef:
        return self.job(uid, "/bin/sh", "-c", script, **fields)

    def python(self, uid: str, script: str, **fields: object) -> WorkloadRef:
        return self.job(uid, sys.executable, "-u", "-c", script, **fields)

    def out(self, uid: str) -> Path:
        return self.state / "logs" / f"{uid}.log"

    async def run(self, workload: WorkloadRef) -> ExitRecord:
        """Start it cold and wait for its end."""
        await self.runtime.start_cold(workload, None)
        return await self.end_of(workload.uid)

    async def end_of(self, uid: str) -> ExitRecord:
        async with asyncio.timeout(TIMEOUT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self._record(uid) is not None)
        record = self._record(uid)
        assert record is not None
        return record

    async def printed(self, uid: str, lines: int) -> list[str]:
        """Wait until the job has printed that many lines."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(found := self._lines(uid)) < lines:
                await asyncio.sleep(0.01)  # a plain file has no event that both ends of a restore share
        return found

    def _lines(self, uid: str) -> list[str]:
        out = self.out(uid)
        return (
            [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")] if out.exists() else []
        )

    def _record(self, uid: str) -> ExitRecord | None:
        return next((c.record for c in self.seen if isinstance(c, RunEnded) and c.run == uid), None)

    def began(self, uid: str) -> RunBegan | None:
        return next((c for c in self.seen if isinstance(c, RunBegan) and c.run == uid), None)

    async def _read(self) -> None:
        async for change in self.runtime.changes():
            async with self._changed:
                self.seen.append(change)
                self._changed.notify_all()


@pytest.fixture
async def lab(tmp_path: Path, toolchain: Toolchain) -> AsyncIterator[Lab]:
    lab = Lab(tmp_path / "state", toolchain)
    await lab.open()
    yield lab
    for uid in lab.jobs:
        await lab.runtime.kill(uid)
        await lab.runtime.forget(uid)
    await lab.close()
    assert list((lab.state / "runs").iterdir()) == []
    left = [path for root in CgroupSite.of_this_machine().roots.values() for uid in lab.jobs
            for path in [root / "cedana-sched" / uid] if path.exists()]  # fmt: skip
    assert left == [], "control groups were left behind"


@pytest.fixture(autouse=True)
def _nothing_stays_behind(tmp_path: Path) -> Iterator[None]:
    mounts = Path("/proc/self/mountinfo").read_text()
    yield
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder, of every process that runs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in words and entry.name != str(os.getpid()):
            found.append(words)
    return found
