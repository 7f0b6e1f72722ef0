"""A capture whose agent is gone stops its dump, or finishes it where it outlives the agent; SIGTERM stops both."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from cedana_sched.agent import orphan_processes
from cedana_sched.agent.capture_messages import CaptureFailed, criu_directory
from cedana_sched.agent.capture_processes import CaptureProcesses
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from tests.unit.agent.test_capture_messages import request


class FakeShelter:
    """Notes who comes and goes."""

    def __init__(self, *, can: bool = True, shortage: str | None = None) -> None:
        self.admitted: set[int] = set()
        self.limited: dict[int, int] = {}
        self.left: set[int] = set()
        self.on_limit: Callable[[int], None] = lambda _: None
        self._can = can
        self._shortage = shortage

    async def detach(self, pid: int) -> bool:
        self.admitted.add(pid)
        return self._can

    async def limit_memory(self, pid: int, workload_bytes: int) -> None:
        self.limited[pid] = workload_bytes
        self.on_limit(pid)

    async def clean_up_after(self, pid: int) -> str | None:
        self.left.add(pid)
        return self._shortage if pid in self.limited else None


LISTENING = """
import os, sys, threading
from cedana_sched.agent.capture import _listen_for_cancellation
reports = os.dup(1)
class Dump:
    cancelled = threading.Event()
    def cancel(self, why):
        os.write(reports, why.encode() + b"\\n")
        self.cancelled.set()
dump = Dump()
with _listen_for_cancellation(dump, outlives_agent=sys.argv[1] == "outlives"):
    os.write(reports, b"dumps\\n")
    dump.cancelled.wait()
"""


def listening(kind: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", LISTENING, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"dumps\n"
    return process


def stop_word(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"stop\n")
    process.stdin.flush()


def end_of_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def says(process: subprocess.Popen[bytes]) -> bytes:
    """All that it says until it ends; its stdin stays open till then."""
    assert process.stdout is not None
    said = process.stdout.read()
    _, errors = process.communicate(timeout=30)
    assert errors == b""
    return said


@pytest.mark.parametrize("kind", ["outlives", "ends"])
def test_a_word_stops_it(kind: str) -> None:
    process = listening(kind)
    stop_word(process)
    assert says(process) == b"the checkpoint was cancelled\n"


@pytest.mark.parametrize("kind", ["outlives", "ends"])
def test_sigterm_stops_it(kind: str) -> None:
    process = listening(kind)
    process.send_signal(signal.SIGTERM)
    assert says(process) == b"the checkpoint was cancelled\n"


def test_one_that_ends_with_its_agent_stops_then() -> None:
    process = listening("ends")
    end_of_stdin(process)
    assert says(process) == b"the agent ended during the dump\n"


def test_one_that_outlives_its_agent_goes_on_until_the_next_agent_stops_it() -> None:
    process = listening("outlives")
    end_of_stdin(process)
    assert process.stderr is not None
    assert process.stderr.read() == b"", "it has let go of what its agent reads"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert says(process) == b"the checkpoint was cancelled\n"


@pytest.mark.parametrize("can", [True, False])
async def test_only_who_is_sheltered_is_told_to_outlive(can: bool, tmp_path: Path) -> None:
    shelter = FakeShelter(can=can)
    async with CaptureProcesses(request().toolchain, tmp_path, shelter) as captures:
        assert shelter.admitted == {process.pid for process in captures._spares}
        assert captures._detached == (shelter.admitted if can else set())
    assert shelter.left == shelter.admitted


@pytest.mark.parametrize("shortage", ["out of memory: raise it", None])
async def test_a_capture_that_ran_out_of_memory_says_so_first(shortage: str | None, tmp_path: Path) -> None:
    shelter = FakeShelter(shortage=shortage)
    asked = replace(request(), work_directory=str(tmp_path / "c1"))
    async with CaptureProcesses(request().toolchain, tmp_path, shelter) as captures:
        shelter.on_limit = lambda pid: os.kill(pid, signal.SIGKILL)  # as soon as it has its limit
        reports = [report async for report in captures.run(asked)]
    killed = "the capture process was killed by SIGKILL"
    why = killed if shortage is None else f"{shortage}; {killed}"
    assert reports == [CaptureFailed(why, retryable=True)]
    assert len(shelter.limited) == 1
    assert shelter.left == shelter.admitted


async def test_a_killed_one_whose_agent_is_gone_leaves_no_criu_to_a_workload_that_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent would have undone what it leaves; the next one is told that the checkpoint is called off."""
    monkeypatch.setattr(orphan_processes, "PATIENCE_SECONDS", 0.2)
    directory = tmp_path / "c1"
    work = criu_directory(directory, "main")
    work.mkdir(parents=True)
    criu = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.stdin.read()", str(work), stdin=asyncio.subprocess.PIPE
    )
    async with CaptureProcesses(request().toolchain, tmp_path) as captures:
        tree = RunningContainer(criu.pid, tmp_path / "gone", "main")
        await captures.stop("c1", RunningWorkload((tree,)))
        assert await asyncio.wait_for(criu.wait(), 60) != 0, "it ended by itself"  # whoever kills it may reap it first


async def test_an_abort_does_not_wait_for_a_capture_that_cannot_be_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read there may be a workload's, such as the names of its nftables; else it would stay frozen for ever."""

    def stumble(*_: object) -> bool:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    shelter = FakeShelter()
    directory = tmp_path / "c1"
    criu_directory(directory, "main").mkdir(parents=True)
    asked = replace(request(), work_directory=str(directory))
    monkeypatch.setattr("cedana_sched.agent.capture_processes.await_orphans", stumble)
    async with CaptureProcesses(request().toolchain, tmp_path, shelter) as captures, asyncio.timeout(60):
        shelter.on_limit = lambda pid: os.kill(pid, signal.SIGKILL)
        reports = [report async for report in captures.run(asked)]
        assert isinstance(reports[-1], CaptureFailed)
        await captures.stop("c1", asked.workload)


async def test_an_abort_does_not_wait_for_a_capture_whose_shelter_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(pid: int) -> str | None:
        raise RuntimeError(f"no group of {pid}")

    shelter = FakeShelter()
    asked = replace(request(), work_directory=str(tmp_path / "c1"))
    async with CaptureProcesses(request().toolchain, tmp_path, shelter) as captures, asyncio.timeout(60):
        with monkeypatch.context() as patch:
            patch.setattr(shelter, "clean_up_after", fail)
            shelter.on_limit = lambda pid: os.kill(pid, signal.SIGKILL)
            with pytest.raises(RuntimeError, match="no group"):
                [report async for report in captures.run(asked)]
        await captures.stop("c1", asked.workload)


class Unkillable:
    """A process whose threads wait in the kernel, as in fsync(2) of a file whose server is away."""

    pid = 1 << 22  # above all that there are
    stdin = None
    killed = False

    async def wait(self) -> None:
        await asyncio.Event().wait()

    def kill(self) -> None:
        self.killed = True


async def test_an_abort_does_not_wait_for_a_capture_that_waits_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Unkillable()
    cleaned: list[str] = []
    monkeypatch.setattr(
        "cedana_sched.agent.capture_processes.await_orphans", lambda _, work, __: cleaned.append(work.name)
    )
    (tmp_path / "c1").mkdir()
    async with CaptureProcesses(request().toolchain, tmp_path) as captures, asyncio.timeout(60):
        captures._running["c1"] = process  # type: ignore[assignment]
        with monkeypatch.context() as patch:  # not for the spares, which are real processes and need their time
            patch.setattr("cedana_sched.agent.capture_processes.STOP_SECONDS", 0.1)
            patch.setattr("cedana_sched.agent.capture_processes.KILLED_SECONDS", 0.1)
            patch.setattr("cedana_sched.agent.capture_processes._write", lambda *_: None)
            await captures.stop("c1", request().workload)
        del captures._running["c1"]
    assert process.killed
    assert cleaned == ["c1"], "its CRIU is ended, which may be inside the workload"
