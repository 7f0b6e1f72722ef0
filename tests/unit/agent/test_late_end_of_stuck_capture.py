"""A killed capture that waited in the kernel ends late: it must leave alone a workload that was let go meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cedana_sched.agent.capture_processes import CaptureProcesses
from tests.unit.agent.test_capture_messages import request


class Stuck:
    """As in fsync(2) of a file whose server is away; `server_is_back` lets it die of the SIGKILL that it got."""

    pid = 1 << 22
    stdin = None
    returncode = None

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.server_is_back = asyncio.Event()
        self.stdout = self._silence()

    async def _silence(self) -> AsyncIterator[bytes]:
        self.begun.set()
        await self.server_is_back.wait()
        for line in list[bytes]():
            yield line

    async def wait(self) -> int:
        await self.server_is_back.wait()
        return -9

    def kill(self) -> None:
        pass


async def test_a_capture_that_ends_late_does_not_touch_its_workload_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedana_sched.agent.capture_processes.STOP_SECONDS", 0.1)
    monkeypatch.setattr("cedana_sched.agent.capture_processes.KILLED_SECONDS", 0.1)
    monkeypatch.setattr("cedana_sched.agent.capture_processes._write", lambda *_: None)
    monkeypatch.setattr("cedana_sched.agent.capture_processes._close_stdin", lambda *_: None)
    touched: list[str] = []
    monkeypatch.setattr(
        "cedana_sched.agent.capture_processes.await_orphans", lambda _, work, __: touched.append(work.name)
    )
    stuck = Stuck()
    asked = replace(request(), checkpoint_uid="c1", work_directory=str(tmp_path / "c1"))
    (tmp_path / "c1").mkdir()
    captures = CaptureProcesses(request().toolchain, tmp_path)

    async def begin() -> Stuck:
        return stuck

    monkeypatch.setattr(captures, "_take_spare", begin)
    monkeypatch.setattr(captures, "_refill_spare_processes", lambda: asyncio.sleep(0))

    async def capture() -> None:
        async for _ in captures.run(asked):
            pass

    async with asyncio.timeout(60):
        running = asyncio.create_task(capture())
        await stuck.begun.wait()
        await captures.stop("c1", asked.workload)
        assert touched == ["c1"]
        # Aborted: the workload runs on, and the next attempt dumps it
        stuck.server_is_back.set()
        await running
    assert touched == ["c1"], "a dump of the same workload, by the next attempt, would have been undone"
