"""Captures wait with their imports done; the next ones are started when nothing is dumped any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from cedana_sched.agent import capture_processes as module
from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureFailed, CaptureReport, encode
from cedana_sched.agent.capture_processes import SPARES, CaptureProcesses
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.records import Transfer
from tests.unit.agent.test_capture_messages import request

_COMMITTED = CaptureCommitted(SnapshotRef(Identity("bio", "md"), 1), Transfer())


class _Stdin:
    def __init__(self, process: _Process) -> None:
        self._process = process

    def write(self, data: bytes) -> None:
        self._process.asked.set()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self._process.end()


class _Process:
    pid = 1

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.returncode: int | None = None
        self.stdin = _Stdin(self)
        self.stdout = asyncio.StreamReader()
        self._ended = asyncio.Event()

    def commit(self) -> None:
        self.stdout.feed_data(encode(_COMMITTED))
        self.end()

    def end(self) -> None:
        if self.returncode is None:
            self.returncode = 0
            self.stdout.feed_eof()
            self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0


async def test_spares_are_taken_at_once_and_replaced_when_all_is_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[_Process] = []

    async def start() -> asyncio.subprocess.Process:
        started.append(_Process())
        return cast("asyncio.subprocess.Process", started[-1])

    async def capture(uid: str) -> list[CaptureReport]:
        return [report async for report in captures.run(replace(request(), checkpoint_uid=uid))]

    monkeypatch.setattr(module, "_start", start)
    async with CaptureProcesses(request().toolchain, tmp_path) as captures:
        assert len(started) == SPARES
        first, second = asyncio.create_task(capture("c1")), asyncio.create_task(capture("c2"))
        for process in started:
            await process.asked.wait()
        assert len(started) == SPARES, "both were waiting"
        started[0].commit()
        assert await first == [_COMMITTED]
        assert len(started) == SPARES, "the other one still dumps"
        started[1].commit()
        assert await second == [_COMMITTED]
        assert len(started) == 2 * SPARES
    assert all(process.returncode == 0 for process in started)


async def test_a_failure_is_told_when_nothing_is_left_of_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nothing moves says so, and is killed then: another attempt must not find it, nor its CRIU."""
    started: list[_Process] = []

    async def start() -> asyncio.subprocess.Process:
        started.append(_Process())
        return cast("asyncio.subprocess.Process", started[-1])

    monkeypatch.setattr(module, "_start", start)
    async with CaptureProcesses(request().toolchain, tmp_path) as captures:
        reports = captures.run(request())
        telling = asyncio.ensure_future(anext(reports))
        await started[0].asked.wait()
        monkeypatch.setattr(started[0].stdin, "close", lambda: None)
        failed = CaptureFailed("nothing could be stored", retryable=True)
        started[0].stdout.feed_data(encode(failed))
        for _ in range(10):
            await asyncio.sleep(0)
        was_told = telling.done()
        started[0].end()
        assert not was_told
        assert await telling == failed
        assert "c1" not in captures._running


async def test_an_attempt_that_ends_late_leaves_the_next_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[_Process] = []

    async def start() -> asyncio.subprocess.Process:
        started.append(_Process())
        return cast("asyncio.subprocess.Process", started[-1])

    async def capture() -> list[CaptureReport]:
        return [report async for report in captures.run(request())]

    monkeypatch.setattr(module, "_start", start)
    async with CaptureProcesses(request().toolchain, tmp_path) as captures:
        first, second = asyncio.create_task(capture()), asyncio.create_task(capture())
        for process in started:
            await process.asked.wait()
        started[0].end()
        assert len(await first) == 1
        assert captures._running["c1"] is cast("object", started[1])
        started[1].commit()
        assert await second == [_COMMITTED]


async def test_a_spare_that_is_being_started_at_the_end_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer of the reports is cancelled, as at the agent's end: what cleans up after its capture goes on."""
    started: list[_Process] = []
    starting, may_start = asyncio.Event(), asyncio.Event()

    async def start() -> asyncio.subprocess.Process:
        if len(started) >= SPARES:
            starting.set()
            await may_start.wait()
        started.append(_Process())
        return cast("asyncio.subprocess.Process", started[-1])

    async def capture() -> list[CaptureReport]:
        return [report async for report in captures.run(request())]

    monkeypatch.setattr(module, "_start", start)
    async with asyncio.timeout(60):
        async with CaptureProcesses(request().toolchain, tmp_path) as captures:
            running = asyncio.create_task(capture())
            await started[0].asked.wait()
            captures._spares.clear()
            started[1].end()
            started[0].commit()
            await starting.wait()
            running.cancel()
            await asyncio.wait([running])
            asyncio.get_running_loop().call_soon(may_start.set)
    assert len(started) == SPARES + 1
    assert all(process.returncode == 0 for process in started)
