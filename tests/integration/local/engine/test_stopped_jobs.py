"""A job with a stopped process is preempted like any other; one under a debugger is told, and runs on."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cedana_sched.model.errors import DumpError
from tests import processes
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine, printed
from tests.integration.local.engine.processes import first_process_of

pytestmark = pytest.mark.criu

STOPPED = "sleep 1000 & kill -STOP $!; n=0; while true; do n=$((n+1)); echo $n; sleep 0.05; done"

TRACER = """
import ctypes, signal, sys
PTRACE_SEIZE = 0x4206
assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0
print("traced", flush=True)
signal.pause()
"""


async def sleeper_of(engine: Engine, uid: str) -> psutil.Process:
    """The process that the job's shell has stopped, perhaps before it became `sleep`."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            for process in processes.below(first_process_of(engine, await engine.job(uid))):
                with contextlib.suppress(psutil.Error):  # the shell's other sleeps end
                    if process.status() == psutil.STATUS_STOPPED:
                        return process
            await asyncio.sleep(0.02)  # the shell stops it when it likes


async def prints_on(engine: Engine, uid: str) -> None:
    wanted = len(printed(await engine.job(uid))) + 5
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(printed(await engine.job(uid))) < wanted:  # noqa: ASYNC110 - a file that grows while we look
            await asyncio.sleep(0.02)


async def test_a_job_with_a_stopped_process_is_preempted_and_comes_back_with_it(engine: Engine) -> None:
    job = await engine.submit("bash", "-c", STOPPED, id="stopped")
    await engine.until_phase(job.uid, "Running")
    await sleeper_of(engine, job.uid)
    async with engine.client() as client:
        await client.preempt(job.uid)
    back = await engine.until(job.uid, lambda j: j.phase == "Running" and len(j.runs) == 2)
    assert back.runs[1].restored_from == "default/stopped/0/main@1"
    await sleeper_of(engine, job.uid)
    await prints_on(engine, job.uid)
    numbers = [int(line) for line in printed(back)]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_job_under_a_debugger_is_told_and_is_not_frozen(engine: Engine) -> None:
    job = await engine.submit("bash", "-c", STOPPED, id="traced")
    await engine.until_phase(job.uid, "Running")
    sleeper = await sleeper_of(engine, job.uid)
    shell = sleeper.parent()
    assert shell is not None
    tracer = await asyncio.create_subprocess_exec(sys.executable, "-c", TRACER, str(shell.pid), stdout=subprocess.PIPE)
    try:
        assert tracer.stdout is not None
        assert await tracer.stdout.readline() == b"traced\n"
        async with engine.client() as client:
            with pytest.raises(DumpError, match=rf"process {shell.pid} \(bash\) is traced by process {tracer.pid} "):
                await client.checkpoint(job.uid, leave_running=False)
        assert not list(Path(engine.state, "captures").glob("*/dump.log"))
    finally:
        tracer.kill()
        await tracer.wait()
    await prints_on(engine, job.uid)
