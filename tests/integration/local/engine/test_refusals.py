"""What cannot be snapshotted, continued or scheduled: the job and the person are told which, and why."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from cedana_sched.model.errors import DumpError, UsageError
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine, printed
from tests.integration.local.engine.processes import first_process_of, kill
from tests.integration.local.engine.witnesses import Witness

pytestmark = pytest.mark.criu

TALKER = """
import socket, sys, time
talker = socket.socket(socket.AF_UNIX)
talker.connect(sys.argv[1])
number = 0
while True:
    print(number, flush=True)
    number += 1
    time.sleep(0.02)
"""

IO_URING = """
import ctypes, sys, time
IO_URING_SETUP = 425
parameters = ctypes.create_string_buffer(120)
if ctypes.CDLL(None, use_errno=True).syscall(IO_URING_SETUP, 4, parameters) < 0:
    sys.exit("no io_uring")
while True:
    print("ring", flush=True)
    time.sleep(0.02)
"""

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    print("on", flush=True)
    time.sleep(0.02)
"""


async def prints_on(engine: Engine, uid: str, lines: int = 5) -> None:
    """Wait until a job that runs has printed so many lines more."""
    job = await engine.until_phase(uid, "Running")
    wanted = len(printed(job)) + lines
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(printed(job)) < wanted:  # noqa: ASYNC110 - a file that grows while we look
            await asyncio.sleep(0.02)
    assert (await engine.job(uid)).phase == "Running"


async def test_a_job_connected_to_the_outside_is_not_dumped_and_runs_on(engine: Engine) -> None:
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(str(engine.home / "outside"))
        outside.listen()
        job = await engine.submit(sys.executable, "-c", TALKER, str(engine.home / "outside"), id="talker")
        await engine.until_phase(job.uid, "Running")
        accepted, _ = outside.accept()
        with accepted:
            async with engine.client() as client:
                with pytest.raises(DumpError, match="socket") as refused:
                    await client.checkpoint(job.uid, leave_running=False)
            assert "outside" in str(refused.value)
            await prints_on(engine, job.uid)


@pytest.mark.skipif(
    Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() == "2", reason="this machine allows no io_uring"
)
async def test_a_job_with_an_io_uring_is_not_dumped_and_runs_on(engine: Engine) -> None:
    job = await engine.submit(sys.executable, "-c", IO_URING, id="ring")
    await prints_on(engine, job.uid)
    async with engine.client() as client:
        with pytest.raises(DumpError, match="io_uring"):
            await client.checkpoint(job.uid, leave_running=True)
    await prints_on(engine, job.uid)


@pytest.mark.skipif(
    Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() == "2", reason="this machine allows no io_uring"
)
async def test_a_job_shows_what_a_checkpoint_would_fail_for_before_there_is_one(engine: Engine) -> None:
    job = await engine.submit(sys.executable, "-c", IO_URING, id="ring")
    shown = await engine.until(job.uid, lambda job: job.obstacle is not None)
    assert "uses io_uring: switch it off" in (shown.obstacle or "")
    assert shown.phase == "Running"


async def test_a_program_that_was_replaced_since_is_named(engine: Engine) -> None:
    program = engine.home / "program"
    shutil.copy("/bin/bash", program)
    job = await engine.submit(str(program), "-c", "while :; do echo on; sleep 0.02; done", id="replaced")
    await prints_on(engine, job.uid)
    async with engine.client() as client:
        await client.checkpoint(job.uid, leave_running=False)
        program.unlink()
        shutil.copy("/bin/bash", program)
        with program.open("ab") as file:
            file.write(b"another build")
        program.chmod(0o755)
        await client.restore(job.uid)
    back = await engine.until(job.uid, lambda job: job.phase == "Running" and len(job.runs) == 2)
    assert back.runs[1].restored_from is None
    assert str(program) in (back.runs[1].cold_because or ""), back.runs[1]


async def test_a_deadline_that_cannot_be_met_lets_the_job_go_and_says_so(engine: Engine) -> None:
    witness = await Witness.submit(engine, mib=64, deadline_seconds=0.05)
    await witness.running()
    async with engine.client() as client:
        await client.preempt(witness.uid)
    back = await witness.running(2)
    said = r"not committed within 0\.0|its deadline had passed before it was seen"  # a busy machine sees it later
    assert re.search(said, back.runs[1].cold_because or ""), back.runs
    assert witness.rewinds == 1
    await witness.end(cold_starts=1)


async def test_a_checkpoint_on_request_is_answered_when_the_job_has_stopped(engine: Engine) -> None:
    witness = await Witness.submit(engine)
    await witness.running()
    async with engine.client() as client:
        for generation in (1, 2, 3):
            stopped = await client.checkpoint(witness.uid, leave_running=False)
            assert stopped.phase == "Suspended"
            await client.restore(witness.uid)
            await witness.running(generation + 1)
    assert witness.rewinds == 0
    await witness.end()


async def test_submissions_that_cannot_be_done_are_refused_by_field(engine: Engine) -> None:
    await Witness.submit(engine, id="taken")
    for fields, field in (
        ({"group": "physics"}, "group"),
        ({"id": "no/slash"}, "id"),
        ({"cpus": "64"}, "cpus"),
        ({"memory": "1Ti"}, "memory"),
        ({"id": "taken"}, "id"),
        ({"replicas": 0}, "replicas"),
        ({"cwd": "here"}, "cwd"),
    ):
        with pytest.raises(UsageError) as refused:
            await engine.submit("true", **fields)
        assert refused.value.field == field, refused.value
        assert refused.value.remedy


async def test_output_without_a_place_fails_the_job_and_not_the_engine(engine: Engine) -> None:
    (engine.home / "file").touch()
    nowhere = str(engine.home / "file" / "below" / "stdout")
    for name in ("opted-in", None):
        job = await engine.submit("true", id=name, stdout=nowhere)
        failed = await engine.until_phase(job.uid, "Failed", "Succeeded")
        assert (failed.phase, f"{nowhere!r} cannot be opened" in failed.why) == ("Failed", True), failed.why


async def test_an_engine_stops_at_once_while_a_job_refuses_to_end(engine: Engine) -> None:
    job = await engine.submit(sys.executable, "-c", STUBBORN)
    await prints_on(engine, job.uid)
    async with engine.client() as client:
        await client.cancel(job.uid)
    await engine.stop(seconds=10)
    await engine.start()
    kill(first_process_of(engine, await engine.job(job.uid)))  # its grace is half a minute, and begins again
    await engine.until_phase(job.uid, "Cancelled")
