"""Starts capture processes, keeps spare ones, and converts their messages, or their deaths, into reports."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import structlog
from msgspec.structs import replace

from cedana_sched.agent.capture_messages import (
    CaptureFailed,
    CaptureProgress,
    CaptureReport,
    CaptureRequest,
    decode_report,
    encode,
)
from cedana_sched.agent.frozen_workloads import resident_bytes_of
from cedana_sched.agent.orphan_processes import (
    await_captures,
    await_orphans,
    capture_directories_of,
    prune_failed_captures,
    stop_capture,
)
from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.snapshot.criu_toolchain import Toolchain

_STOP_WORD = b"stop\n"
SPARES = 2
"""Idle processes with their imports done, some 35 MiB each; dumps beyond this number start their own process."""
STOP_SECONDS = 5.0
"""Timeout of a capture to stop and undo its dump, after which it is killed: its store may never answer."""
KILLED_SECONDS = 5.0
"""Timeout of a killed capture to exit: after it the process waits in the kernel, as for the server of a folder, and
executes no further instruction."""

log = structlog.get_logger()


class CaptureDetacher(Protocol):
    """Where captures go that outlive the agent, by PID, with their children."""

    async def detach(self, pid: int) -> bool:
        """Move a process in; False if that failed, and the process ends with the agent."""
        ...

    async def limit_memory(self, pid: int, workload_bytes: int) -> None:
        """Limit the process's memory from now on, for a workload of this size."""
        ...

    async def clean_up_after(self, pid: int) -> str | None:
        """Clean up after a process that has exited, moved in or not; return a message if it ran out of memory."""
        ...


class CaptureProcesses:
    """The capture processes of one agent, their files below `work`.

    An async context manager: its exit stops all, except those that outlive the agent.

    Args:
        toolchain: the agent's.
        work: a folder per capture, named by its checkpoint's uid.
        detacher: given if captures would otherwise end with the agent; a detached capture completes, and the next
            agent, which gets the same order, finds its snapshot committed.
    """

    def __init__(self, toolchain: Toolchain, work: Path, detacher: CaptureDetacher | None = None) -> None:
        self._toolchain = toolchain
        self._work = work
        self._detacher = detacher
        self._detached: set[int] = set()
        self._spares: list[Process] = []
        self._running: dict[str, Process] = {}
        self._left: set[Process] = set()
        """Killed, but still in the kernel when their workload was thawed: another attempt may dump it when they
        exit."""
        self._cleaning: dict[asyncio.Task[str | None], Process] = {}
        """What cleans up after captures: it completes even if the consumer of their reports is cancelled."""
        self._idle = asyncio.Condition()
        self._closing = False
        self._of_before: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._detacher is None:
            self._of_before = asyncio.create_task(
                asyncio.to_thread(await_captures, self._work), name="earlier captures"
            )
        await self._refill_spare_processes()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        await asyncio.gather(
            self._end_all(self._running.values()), self._end_spares(), self.wait_for_earlier_captures()
        )
        for task, process in self._cleaning.items():
            if process.returncode is None:  # it outlives the agent, or waits in the kernel
                task.cancel()
        await asyncio.gather(*self._cleaning, return_exceptions=True)  # each was raised where its reports are consumed
        await self._end_spares()  # one may have been started meanwhile

    async def _end_spares(self) -> None:
        spares = list(self._spares)
        self._spares.clear()
        await self._end_all(spares)

    async def _end_all(self, processes: Iterable[Process]) -> None:
        ending = list(processes)
        for process in ending:
            _close_stdin(process)  # it stops its dump, thaws the workload, and exits
        await asyncio.gather(
            *(self._end_process(process) for process in ending if process not in self._running_detached_processes())
        )

    def _running_detached_processes(self) -> list[Process]:
        return [process for process in self._running.values() if process.pid in self._detached]

    async def wait_for_earlier_captures(self) -> None:
        """Wait until captures that should have ended with an earlier agent have ended: they might thaw a workload."""
        if self._of_before is not None:
            await asyncio.shield(self._of_before)

    async def stop_other_captures(self, checkpoint_uid: str, running: RunningWorkload | None) -> None:
        """Stop the captures of this workload that were started for another checkpoint, also by an earlier agent."""
        freezers = running.freezer_cgroups if running is not None else ()
        for directory in await asyncio.to_thread(capture_directories_of, self._work, freezers):
            if directory.name != checkpoint_uid:
                log.warning("capture of a checkpoint that is over is stopped", checkpoint=directory.name)
                await asyncio.to_thread(stop_capture, directory)
                await self._end_orphaned_criu(directory, running)

    async def run(self, request: CaptureRequest) -> AsyncIterator[CaptureReport]:
        """Run one capture to its end; the last report is its outcome, also when its process was killed.

        A failure is reported once nothing of the capture remains: another attempt may begin at once.
        """
        process = await self._take_spare()
        self._running[request.checkpoint_uid] = process
        request = replace(request, outlives_agent=process.pid in self._detached)
        is_committed, failed = False, None
        try:
            if self._detacher is not None:
                await self._detacher.limit_memory(
                    process.pid, await asyncio.to_thread(resident_bytes_of, request.workload)
                )
            _write(process, encode(request))
            assert process.stdout is not None  # noqa: S101  # _start opens the pipe
            async for line in process.stdout:
                report = decode_report(line)
                if isinstance(report, CaptureFailed):
                    failed = report
                else:
                    is_committed = not isinstance(report, CaptureProgress)
                    yield report
            status = await process.wait()
        finally:
            shortage = await asyncio.shield(self._start_cleaning(request, process))
        if not is_committed:
            failed = failed or CaptureFailed(f"the capture process {_how_it_ended(status)}", retryable=True)
            yield CaptureFailed(f"{shortage}; {failed.why}", retryable=True) if shortage else failed

    async def stop(self, checkpoint_uid: str, running: RunningWorkload | None) -> None:
        """Stop a capture if it runs, also that of an earlier agent; return when it and its CRIU have ended.

        A process that waits in the kernel exits later, and executes nothing more: its workload must not wait for that.

        `running` is the workload that the capture dumps, as far as it runs.
        """
        process = self._running.get(checkpoint_uid)
        directory = self._work / validate_segment("checkpoint", checkpoint_uid)
        if process:
            _write(process, _STOP_WORD)  # before an earlier capture ends and makes room for it
        own = process.pid if process else None
        await asyncio.to_thread(stop_capture, directory, own)
        if process and await _wait_or_kill(process):
            async with self._idle:
                await self._idle.wait_for(lambda: checkpoint_uid not in self._running)
        elif process:
            self._left.add(process)
        await self._end_orphaned_criu(directory, running)  # without its agent, no other component cleans up after it

    async def _take_spare(self) -> Process:
        while self._spares:
            if (spare := self._spares.pop(0)).returncode is None:
                return spare
            await self._clean_up_detached(spare)
        return await self._start()

    async def _refill_spare_processes(self) -> None:
        """Start spare processes once all captures have ended: their imports must not slow down a capture."""
        while len(self._spares) < SPARES and not self._running and not self._closing:
            self._spares.append(await self._start())

    async def _start(self) -> Process:
        process = await _start()
        if self._detacher is not None and await self._detacher.detach(process.pid):
            self._detached.add(process.pid)
        return process

    async def _end_process(self, process: Process) -> None:
        await _wait_or_kill(process)
        await self._clean_up_detached(process)

    async def _clean_up_detached(self, process: Process) -> str | None:
        return None if self._detacher is None else await self._detacher.clean_up_after(process.pid)

    def _start_cleaning(self, request: CaptureRequest, process: Process) -> asyncio.Task[str | None]:
        task = asyncio.create_task(
            self._finish_capture(request, process), name=f"clean up after {request.checkpoint_uid}"
        )
        self._cleaning[task] = process
        task.add_done_callback(self._cleaning.pop)
        return task

    async def _finish_capture(self, request: CaptureRequest, process: Process) -> str | None:
        """Clean up after a capture; return a message if it ran out of memory."""
        _close_stdin(process)
        try:
            if await process.wait() < 0 and process not in self._left:
                await self._end_orphaned_criu(Path(request.work_directory), request.workload)
            shortage = await self._clean_up_detached(process)
        finally:  # an abort waits for this
            async with self._idle:
                if self._running.get(request.checkpoint_uid) is process:  # the next attempt may have its place
                    del self._running[request.checkpoint_uid]
                self._detached.discard(process.pid)
                self._left.discard(process)
                self._idle.notify_all()
        await asyncio.to_thread(prune_failed_captures, self._work)
        await self._refill_spare_processes()
        return shortage

    async def _end_orphaned_criu(self, directory: Path, workload: RunningWorkload | None) -> None:
        """Clean up after a capture process that may have been killed: its CRIU detects the broken pipe.

        Success leaves no directory. A failed cleanup must not keep the workload from being thawed.
        """
        if workload is None or not await asyncio.to_thread(directory.exists):
            return
        try:
            if not await asyncio.to_thread(await_orphans, self._toolchain, directory, workload):
                log.warning("criu was killed", checkpoint=directory.name)
        except (CedanaSchedError, OSError) as error:
            log.warning("rest of a capture not undone", checkpoint=directory.name, error=str(error))
        except Exception:  # a defect in one workload must not leave it frozen
            log.exception("rest of a capture not undone", checkpoint=directory.name)


async def _start() -> Process:
    """Start a process in a session of its own: a Ctrl-C for the agent must not reach it."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cedana_sched.agent.capture", stdin=PIPE, stdout=PIPE, start_new_session=True
    )


async def _wait_or_kill(process: Process) -> bool:
    """Wait until a stopping process has exited, then kill it; False: it is killed, and has not exited yet."""
    if await _wait_for_exit(process, STOP_SECONDS):
        return True
    log.warning("capture does not stop, and is killed", pid=process.pid)
    process.kill()
    if await _wait_for_exit(process, KILLED_SECONDS):
        return True
    log.error("killed capture waits in the kernel", pid=process.pid)
    return False


async def _wait_for_exit(process: Process, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _how_it_ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _write(process: Process, data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # _start opens the pipe
    if not process.stdin.is_closing():
        process.stdin.write(data)


def _close_stdin(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
