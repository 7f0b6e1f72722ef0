"""Starts capture processes, keeps some ready, and turns what they say, or their death, into reports."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from cedana_sched.agent.messages import (
    CaptureFailed,
    CaptureProgress,
    CaptureReport,
    CaptureRequest,
    decode_report,
    encode,
)
from cedana_sched.agent.orphans import await_captures, await_orphans, prune
from cedana_sched.snapshot.toolchain import Toolchain

_STOP_WORD = b"stop\n"
SPARES = 2
"""Processes that wait with their imports done, some 35 MiB each: what is dumped beside more others starts its own."""
STOP_SECONDS = 5.0
"""A capture that was told to stop, and has not undone its dump by then, is killed: its store may never answer."""

log = structlog.get_logger()


class Captures:
    """The capture processes of one agent, their files below `work`. An async context manager: leaving it stops all."""

    def __init__(self, toolchain: Toolchain, work: Path) -> None:
        self._toolchain = toolchain
        self._work = work
        self._spares: list[Process] = []
        self._running: dict[str, Process] = {}
        self._idle = asyncio.Condition()
        self._closing = False
        self._of_before: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._of_before = asyncio.create_task(asyncio.to_thread(await_captures, self._work), name="earlier captures")
        await self._refill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        processes = [*self._running.values(), *self._spares]
        for process in processes:
            _close_stdin(process)  # it stops its dump, thaws the workload, and ends
        await asyncio.gather(*(_end(process) for process in processes), self.none_of_before())

    async def none_of_before(self) -> None:
        """Wait until no capture of an earlier agent works any more: it might thaw what is frozen now."""
        if self._of_before is not None:
            await asyncio.shield(self._of_before)

    async def run(self, request: CaptureRequest) -> AsyncIterator[CaptureReport]:
        """Run one capture to its end; the last report says how it ended, also when its process was killed."""
        process = await self._take_spare()
        self._running[request.checkpoint_uid] = process
        finished = False
        try:
            _write(process, encode(request))
            assert process.stdout is not None  # noqa: S101  # _start asks for the pipe
            async for line in process.stdout:
                report = decode_report(line)
                finished = not isinstance(report, CaptureProgress)
                yield report
            status = await process.wait()
        finally:
            await asyncio.shield(self._forget(request, process))
        if not finished:
            yield CaptureFailed(f"the capture process {_how_it_ended(status)}", retryable=True)

    async def stop(self, checkpoint_uid: str) -> None:
        """Stop a capture if it runs, and return when it has ended."""
        if process := self._running.get(checkpoint_uid):
            _write(process, _STOP_WORD)
            await _end(process)
            async with self._idle:
                await self._idle.wait_for(lambda: checkpoint_uid not in self._running)

    async def _take_spare(self) -> Process:
        while self._spares:
            if (spare := self._spares.pop(0)).returncode is None:
                return spare
        return await _start()

    async def _refill(self) -> None:
        """Not before all captures have ended: the imports of the next ones must not slow them down."""
        while len(self._spares) < SPARES and not self._running and not self._closing:
            self._spares.append(await _start())

    async def _forget(self, request: CaptureRequest, process: Process) -> None:
        _close_stdin(process)
        if await process.wait() < 0:
            await self._clean_up(request)
        async with self._idle:
            del self._running[request.checkpoint_uid]
            self._idle.notify_all()
        await asyncio.to_thread(prune, self._work)
        await self._refill()

    async def _clean_up(self, request: CaptureRequest) -> None:
        """The capture process was killed: its CRIU notices that nobody reads."""
        if not await asyncio.to_thread(await_orphans, self._toolchain, request):
            log.warning("criu had to be killed", checkpoint=request.checkpoint_uid)


async def _start() -> Process:
    """A session of its own: a Ctrl-C meant for the agent must not reach it."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cedana_sched.agent.capture", stdin=PIPE, stdout=PIPE, start_new_session=True
    )


async def _end(process: Process) -> None:
    """Wait for the end of a process that was told to end, and insist on it."""
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("capture does not stop, and is killed", pid=process.pid)
        process.kill()
        await process.wait()


def _how_it_ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _write(process: Process, data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # _start asks for the pipe
    if not process.stdin.is_closing():
        process.stdin.write(data)


def _close_stdin(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
