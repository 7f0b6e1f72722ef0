"""Engine and supervisors are killed at any instant; a new engine finds every run as it is, and nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cedana_sched.local.runs.process_identity import ProcessId
from cedana_sched.local.runs.run_directory import RunDirectory
from cedana_sched.snapshot import freezer

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

LOOP = "trap 'exit 5' TERM; while :; do echo tick; sleep 0.02; done"


async def test_job_outlives_an_engine_that_is_killed(lab: Lab) -> None:
    workload = lab.shell("orphan", LOOP)
    engine = await engine_that_runs(lab, "orphan", LOOP)
    engine.kill()
    await engine.wait()
    await lab.restart()
    await lab.printed("orphan", len(lab.lines("orphan")) + 3)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    await lab.runtime.terminate("orphan", grace_seconds=20)
    assert (await lab.end_of("orphan")).exit_code == 5


async def test_adopted_run_can_be_asked_for_at_once(lab: Lab) -> None:
    workload = lab.shell("soon", "sleep 60")
    await lab.runtime.start_cold(workload, None)
    await lab.close()
    lab.runtime = lab.new_runtime()
    await lab.runtime.adopt_previous_runs()
    assert await lab.runtime.find_running(workload) is not None


async def test_end_while_no_engine_was_there_is_told_until_it_is_forgotten(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("short", "echo up; sleep 0.1; exit 4"), None)
    supervisor = state_of(lab, "short").shim
    await lab.close()
    await end_of_process(supervisor)
    for _ in range(2):
        await lab.restart()
        assert (await lab.end_of("short")).exit_code == 4
    await lab.runtime.discard_run("short")
    await lab.restart()
    assert lab.seen == []


async def test_adopt_names_the_runs_that_live(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("alive", "sleep 60"), None)
    await lab.run(lab.shell("over", "true"))
    await lab.close()
    lab.runtime = lab.new_runtime()
    assert await lab.runtime.adopt_previous_runs() == ("alive",)


async def test_run_whose_supervisor_is_killed_is_ended_and_lost(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("lost", LOOP), None)
    await lab.printed("lost", 2)
    state_of(lab, "lost").shim.send(signal.SIGKILL)
    record = await lab.end_of("lost")
    assert record.lost
    assert record.failure is not None
    assert "supervisor was killed" in record.failure.message
    await assert_silence(lab, "lost")


async def test_run_whose_supervisor_died_with_the_engine_is_ended_by_the_next(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("both", LOOP), None)
    supervisor = state_of(lab, "both").shim
    await lab.close()
    supervisor.send(signal.SIGKILL)
    await lab.printed("both", len(lab.lines("both")) + 2)  # nobody ends it yet
    await lab.restart()
    assert (await lab.end_of("both")).lost
    await assert_silence(lab, "both")


async def test_frozen_run_whose_supervisor_is_killed_is_ended(lab: Lab) -> None:
    workload = lab.shell("ice", LOOP)
    await lab.runtime.start_cold(workload, None)
    await lab.printed("ice", 2)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    await asyncio.to_thread(freezer.freeze, running.containers[0].freezer)
    state_of(lab, "ice").shim.send(signal.SIGKILL)
    assert (await lab.end_of("ice")).lost
    assert not running.containers[0].freezer.exists()


async def test_frozen_run_is_killed_after_a_restart_of_the_engine(lab: Lab) -> None:
    workload = lab.shell("thaw", LOOP)
    await lab.runtime.start_cold(workload, None)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    await asyncio.to_thread(freezer.freeze, running.containers[0].freezer)
    await lab.restart()
    assert freezer.is_frozen(running.containers[0].freezer)
    await lab.runtime.kill("thaw")
    assert (await lab.end_of("thaw")).signal == "SIGKILL"


async def test_process_that_got_a_reused_pid_is_not_touched(lab: Lab) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "60")
    await lab.runtime.start_cold(lab.shell("reused", "true"), None)
    await lab.end_of("reused")
    await lab.close()
    path = lab.state / "runs" / "reused"
    (path / "exit.json").unlink()
    ours = ProcessId.from_pid(bystander.pid)
    rewrite(path / "state.json", shim=ours._replace(start=ours.start - 1), init=ours._replace(start=ours.start - 1))
    await lab.restart()
    assert (await lab.end_of("reused")).lost
    await lab.runtime.terminate("reused", grace_seconds=0.1)
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


async def test_pid_of_an_earlier_boot_is_nobody(lab: Lab) -> None:
    mine = ProcessId.from_pid(os.getpid())
    assert mine.alive()
    assert not mine._replace(boot="another boot").alive()
    assert mine._replace(boot="another boot").open_pidfd() is None


async def test_engine_killed_before_the_supervisor_began_starts_the_run_again(lab: Lab) -> None:
    workload = lab.shell("early", "echo once")
    await lab.run(workload)
    await lab.close()
    path = lab.state / "runs" / "early"
    for name in ("state.json", "exit.json"):
        (path / name).unlink()
    lab.out("early").unlink()
    await lab.restart()
    assert (await lab.run(workload)).exit_code == 0
    assert lab.out("early").read_text() == "once\n"


async def test_engine_killed_before_the_spec_was_written_leaves_nothing(lab: Lab) -> None:
    await lab.close()
    empty = lab.state / "runs" / "half"
    (empty / "root").mkdir(parents=True)
    await lab.restart()
    assert not empty.exists()


async def test_second_supervisor_of_a_run_does_nothing(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("single", LOOP), None)
    first = state_of(lab, "single")
    path = lab.state / "runs" / "single"
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cedana_sched.local.runs.run_supervisor", str(path), stderr=subprocess.PIPE
    )
    _, words = await second.communicate()
    assert b"nothing to do" in words
    assert state_of(lab, "single") == first
    assert first.init is not None
    assert first.init.alive()


async def engine_that_runs(lab: Lab, uid: str, script: str) -> asyncio.subprocess.Process:
    program = Path(__file__).with_name("engine_process.py")
    engine = await asyncio.create_subprocess_exec(
        sys.executable, str(program), str(lab.state), uid, str(lab.out(uid)), script, stdout=subprocess.PIPE
    )
    assert engine.stdout is not None
    assert await engine.stdout.readline() == b"started\n"
    return engine


async def assert_silence(lab: Lab, uid: str) -> None:
    """The job writes nothing any more."""
    lines = len(lab.lines(uid))
    await asyncio.sleep(0.1)
    assert len(lab.lines(uid)) == lines


async def end_of_process(process: ProcessId) -> None:
    async with asyncio.timeout(60):
        while process.alive():  # noqa: ASYNC110  # there is no engine here that would watch it
            await asyncio.sleep(0.01)


def state_of(lab: Lab, uid: str) -> Any:
    state = RunDirectory(lab.state / "runs" / uid).read_state()
    assert state is not None
    return state


def rewrite(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
