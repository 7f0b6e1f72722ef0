"""Starts capture processes, keeps one ready, and turns what they say, or their death, into reports."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from cedana_sched.agent.messages import CaptureFailed, CaptureProgress, CaptureReport, CaptureRequest
from cedana_sched.agent.orphans import await_orphan
from cedana_sched.snapshot.toolchain import Toolchain

_STOP_WORD = b"stop\n"

log = structlog.get_logger()


class Captures:
    """The capture processes of one agent. An async context manager: leaving it stops all of them."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._spare: Process | None = None
        self._running: dict[str, Process] = {}
        self._idle = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._spare = await _start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = [*self._running.values(), *([self._spare] if self._spare else [])]
        for process in processes:
            _close_stdin(process)  # it stops its dump, thaws the workload, and ends
        for process in processes:
            await process.wait()

    async def run(self, request: CaptureRequest) -> AsyncIterator[CaptureReport]:
        """Run one capture to its end; the last report says how it ended, also when its process was killed."""
        process = await self._take_spare()
        self._running[request.checkpoint_uid] = process
        finished = False
        try:
            _write(process, msgspec.json.encode(request) + b"\n")
            assert process.stdout is not None  # noqa: S101  # _start asks for the pipe
            async for line in process.stdout:
                report = msgspec.json.decode(line, type=CaptureReport)
                finished = not isinstance(report, CaptureProgress)
                yield report
            status = await process.wait()
        finally:
            await asyncio.shield(self._forget(request, process))
        if not finished:
            yield CaptureFailed(f"the capture process ended with status {status}", retryable=True)

    async def stop(self, checkpoint_uid: str) -> None:
        """Stop a capture if it runs, and return when it has ended."""
        if process := self._running.get(checkpoint_uid):
            _write(process, _STOP_WORD)
            async with self._idle:
                await self._idle.wait_for(lambda: checkpoint_uid not in self._running)

    async def _take_spare(self) -> Process:
        spare, self._spare = self._spare, None
        if spare is None or spare.returncode is not None:
            spare = await _start()
        return spare

    async def _forget(self, request: CaptureRequest, process: Process) -> None:
        _close_stdin(process)
        if await process.wait() < 0:
            await self._clean_up(request)
        async with self._idle:
            del self._running[request.checkpoint_uid]
            self._idle.notify_all()
        if self._spare is None:
            self._spare = await _start()

    async def _clean_up(self, request: CaptureRequest) -> None:
        """The capture process was killed: its CRIU notices that nobody reads."""
        work, freezer = Path(request.work_directory), Path(request.freezer)
        if not await asyncio.to_thread(await_orphan, self._toolchain, work, freezer):
            log.warning("criu had to be killed", checkpoint=request.checkpoint_uid)


async def _start() -> Process:
    """A session of its own: a Ctrl-C meant for the agent must not reach it."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cedana_sched.agent.capture", stdin=PIPE, stdout=PIPE, start_new_session=True
    )


def _write(process: Process, data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # _start asks for the pipe
    if not process.stdin.is_closing():
        process.stdin.write(data)


def _close_stdin(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
