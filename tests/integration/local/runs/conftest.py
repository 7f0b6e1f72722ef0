"""A runtime with real supervisors, namespaces and control groups, and the proof that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.local.runs.cgroup_site import CgroupSite
from cedana_sched.local.runs.launch_spec import LaunchSpec
from cedana_sched.local.runs.run_directory import ExitRecord
from cedana_sched.local.runs.runtime import LocalRuntime, RunBegan, RunChange, RunEnded
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.dump import Dump, DumpRequest
from tests.integration.folder_sink import FolderSink
from tests.leftovers import mounts_below
from tests.processes import using

TIMEOUT_SECONDS = 60


def own_parent() -> str:
    """Other workers name their jobs alike."""
    return f"cedana-sched-test-{os.getpid()}"


def own_site() -> CgroupSite:
    return CgroupSite.of_this_machine(own_parent())


class Lab:
    """One engine's runtime, and the jobs it knows."""

    def __init__(self, state: Path, toolchain: Toolchain, site: CgroupSite | None = None) -> None:
        self.state = state
        self.site = site
        self.toolchain = toolchain
        self.jobs: dict[str, LaunchSpec] = {}
        self.runtime = self.new_runtime()
        self.seen: list[RunChange] = []
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()

    def new_runtime(self) -> LocalRuntime:
        return LocalRuntime(self.state, self.toolchain, self._job_of, self.site)

    async def _job_of(self, workload: WorkloadRef) -> LaunchSpec:
        return self.jobs[workload.uid]

    async def open(self) -> None:
        await self.runtime.adopt_previous_runs()
        self._reader = asyncio.create_task(self._read(), name="reader of changes")

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self.runtime.close()

    async def finish(self) -> None:
        """End every job, forget every run."""
        for uid in self.jobs:
            await self.runtime.kill(uid)
            await self.runtime.discard_run(uid)
        await self.close()

    async def restart(self) -> None:
        """Another engine takes over; the first saw nothing coming."""
        await self.close()
        self.seen.clear()
        self.runtime = self.new_runtime()
        await self.open()

    def job(self, uid: str, *argv: str, **fields: object) -> WorkloadRef:
        """Make a job known whose output goes to `out(uid)`."""
        out = self.out(uid)
        usual: dict[str, Any] = {"stdout": out, "stderr": out, "engines_folder": out.parent, "directory": Path("/")}
        self.jobs[uid] = LaunchSpec(argv=argv, **(usual | fields))
        return WorkloadRef(uid, "test", uid, "here")

    def shell(self, uid: str, script: str, **fields: object) -> WorkloadRef:
        return self.job(uid, "/bin/sh", "-c", script, **fields)

    def python(self, uid: str, script: str, **fields: object) -> WorkloadRef:
        return self.job(uid, sys.executable, "-u", "-c", script, **fields)

    def again(self, uid: str, earlier: WorkloadRef) -> WorkloadRef:
        """Another run of the same job: same output, same command, new uid."""
        self.jobs[uid] = self.jobs[earlier.uid]
        return WorkloadRef(uid, "test", uid, "here")

    def out(self, uid: str) -> Path:
        known = self.jobs.get(uid)
        return known.stdout if known else self.state / "logs" / f"{uid}.log"

    async def dump(self, workload: WorkloadRef) -> tuple[Path, dict[str, Any]]:
        """Freeze and dump a run; returns its images and restore facts. It stays frozen."""
        running = await self.runtime.find_running(workload)
        assert running is not None
        await asyncio.to_thread(freezer.freeze, running.containers[0].freezer)
        running = await self.runtime.find_running(workload)
        assert running is not None
        images = self.state / "images" / workload.uid
        request = DumpRequest(
            root_pid=running.containers[0].root_pid,
            workdir=self.state / "d" / workload.uid,
            freeze_cgroup=running.containers[0].freezer,
            externals=running.containers[0].externals,
        )
        await asyncio.to_thread(Dump(self.toolchain, request, FolderSink(images)).run)
        for name, text in running.containers[0].notes.items():
            (images / name).write_text(text)
        return images, running.restore_facts

    async def next_generation(self, workload: WorkloadRef, uid: str) -> WorkloadRef:
        """Freeze, dump and kill the run, and continue it as another."""
        images, facts = await self.dump(workload)
        await self.runtime.kill(workload.uid)
        successor = self.again(uid, workload)
        await self.runtime.restore_from_images(successor, images, facts)
        return successor

    async def run(self, workload: WorkloadRef) -> ExitRecord:
        """Start it cold and wait for its end."""
        await self.runtime.start_cold(workload, None)
        return await self.end_of(workload.uid)

    async def end_of(self, uid: str) -> ExitRecord:
        change = await self._await_change(uid, RunEnded)
        assert isinstance(change, RunEnded)
        return change.record

    async def beginning_of(self, uid: str) -> RunBegan:
        change = await self._await_change(uid, RunBegan)
        assert isinstance(change, RunBegan)
        return change

    async def _await_change(self, uid: str, kind: type[RunChange]) -> RunChange:
        def found() -> RunChange | None:
            return next((change for change in self.seen if change.run == uid and isinstance(change, kind)), None)

        async with asyncio.timeout(TIMEOUT_SECONDS), self._changed:
            return await self._changed.wait_for(found)  # type: ignore[arg-type]

    async def printed(self, uid: str, lines: int) -> list[str]:
        """Wait until the job has printed that many lines."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(found := self.lines(uid)) < lines:  # noqa: ASYNC110  # written by another process
                await asyncio.sleep(0.01)
        return found

    def lines(self, uid: str) -> list[str]:
        """The whole lines it has printed so far."""
        out = self.out(uid)
        return (
            [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")] if out.exists() else []
        )

    async def _read(self) -> None:
        async for change in self.runtime.changes():
            async with self._changed:
                self.seen.append(change)
                self._changed.notify_all()


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path leaves room for the name of a unix socket (107 characters in all)."""
    return tmp_path_factory.mktemp("l")


@pytest.fixture
async def lab(short_path: Path, toolchain: Toolchain) -> AsyncIterator[Lab]:
    site = own_site()
    lab = Lab(short_path / "state", toolchain, site)
    await lab.open()
    yield lab
    await lab.finish()
    assert list((lab.state / "runs").iterdir()) == []
    left = [path for uid in lab.jobs for path in site.run_group(uid).unique_directories if path.exists()]
    assert left == [], "control groups were left behind"
    site.remove_unused_groups()


@pytest.fixture(autouse=True)
def _nothing_stays_behind(short_path: Path) -> Iterator[None]:
    yield
    assert mounts_below(short_path) == []
    assert using(short_path) == []
