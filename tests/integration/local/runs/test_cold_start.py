"""A job starts in namespaces and control groups of its own, and its end is told as it was."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs.process_identity import ProcessId
from cedana_sched.snapshot import freezer
from tests.processes import all_processes, words_of

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

NOBODY = pwd.getpwnam("nobody")


@pytest.mark.parametrize("code", [0, 3, 127])
async def test_exit_code_is_told(lab: Lab, code: int) -> None:
    record = await lab.run(lab.shell("codes", f"exit {code}"))
    assert (record.exit_code, record.signal, record.lost, record.failure) == (code, None, False, None)


async def test_signal_that_killed_the_job_is_told(lab: Lab) -> None:
    record = await lab.run(lab.shell("signals", "kill -SEGV $$"))
    assert (record.exit_code, record.signal, record.oom_killed) == (None, "SIGSEGV", False)


async def test_job_sees_only_its_own_processes_and_tini_is_its_init(lab: Lab) -> None:
    await lab.run(lab.shell("pids", "cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l; echo $$"))
    init, count, own = lab.out("pids").read_text().split()
    assert init.startswith("tini")
    assert int(count) <= 5
    assert int(own) < 10


async def test_orphans_of_the_job_are_reaped(lab: Lab) -> None:
    script = "(sleep 0.05 & ) ; sleep 0.3; cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    await lab.run(lab.shell("orphans", script))
    assert lab.out("orphans").read_text().strip() == "0"


async def test_system_v_shared_memory_of_a_job_is_invisible_outside(lab: Lab) -> None:
    outside = shared_memory_segments()
    await lab.runtime.start_cold(lab.shell("ipc", "ipcmk -M 4096; ipcs -m | grep -c ^0x; sleep 60"), None)
    lines = await lab.printed("ipc", 2)
    assert lines[-1].strip() == "1"
    assert shared_memory_segments() == outside


async def test_shared_memory_files_are_the_jobs_own(lab: Lab) -> None:
    await lab.run(lab.shell("shm", "touch /dev/shm/mine; ls /dev/shm"))
    assert lab.out("shm").read_text() == "mine\n"
    assert not os.access("/dev/shm/mine", os.F_OK)


async def test_environment_and_directory_are_those_of_the_job(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_SECRET", "not for jobs")
    script = "pwd; echo $COLOUR; echo [$ENGINE_SECRET]; echo $HOME"
    workload = lab.shell("env", script, directory=tmp_path, environment={"COLOUR": "blue"})
    await lab.run(workload)
    assert lab.out("env").read_text().splitlines() == [str(tmp_path), "blue", "[]", pwd.getpwuid(os.geteuid()).pw_dir]


async def test_job_runs_as_its_user_and_owns_its_output(lab: Lab) -> None:
    await lab.run(lab.shell("user", "id -u; id -g; echo again >> /dev/stdout", user="nobody"))
    assert lab.out("user").read_text().split() == [str(NOBODY.pw_uid), str(NOBODY.pw_gid), "again"]
    assert lab.out("user").stat().st_uid == NOBODY.pw_uid


async def test_memory_limit_kills_and_is_reported_as_such(lab: Lab) -> None:
    record = await lab.run(lab.python("oom", "x = b'1' * (256 << 20)", memory_bytes=64 << 20))
    assert (record.signal, record.oom_killed) == ("SIGKILL", True)
    assert record.max_memory_bytes <= 64 << 20


async def test_cpu_limit_holds(lab: Lab) -> None:
    """A busy machine lengthens it, so that only the shortest time says something."""
    script = (
        "import time\nbegan = time.monotonic(), time.process_time()\n"
        "while time.process_time() < began[1] + 0.5: pass\nprint(time.monotonic() - began[0])"
    )
    record = await lab.run(lab.python("quota", script, cpus=0.25))
    assert float(lab.out("quota").read_text()) > 1.5, "0.5 s at a quarter of a processor"
    assert 0.5 <= record.cpu_seconds < 60


async def test_usage_of_a_running_job_is_told(lab: Lab) -> None:
    workload = lab.python("usage", "x = b'1' * (64 << 20); print(len(x)); import time; time.sleep(60)")
    await lab.runtime.start_cold(workload, None)
    await lab.printed("usage", 1)
    usage = lab.runtime.usage("usage")
    assert usage is not None
    assert usage.memory_bytes > 64 << 20
    assert usage.cpu_seconds > 0


async def test_terminate_lets_the_job_end_by_itself(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("polite", "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait"), None)
    await lab.printed("polite", 1)
    await lab.runtime.terminate("polite", grace_seconds=20)
    assert (await lab.end_of("polite")).exit_code == 7
    assert lab.out("polite").read_text() == "up\nbye\n"


async def test_terminate_kills_after_the_grace(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("deaf", "trap '' TERM; echo up; while :; do sleep 1; done"), None)
    await lab.printed("deaf", 1)
    await lab.runtime.terminate("deaf", grace_seconds=0.2)
    assert (await lab.end_of("deaf")).signal == "SIGKILL"


async def test_frozen_job_can_be_killed_and_executes_nothing_more(lab: Lab) -> None:
    workload = lab.python("frozen", "import itertools\nfor i in itertools.count(): print(i)")
    await lab.runtime.start_cold(workload, None)
    await lab.printed("frozen", 10)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    await asyncio.to_thread(freezer.freeze, running.containers[0].freezer)
    size = lab.out("frozen").stat().st_size
    await lab.runtime.kill("frozen")
    assert (await lab.end_of("frozen")).signal == "SIGKILL"
    assert lab.out("frozen").stat().st_size == size


async def test_processes_that_leave_their_session_end_with_the_job(lab: Lab) -> None:
    seconds = f"61.{uuid.uuid4().int}"  # others may run this test beside us
    await lab.runtime.start_cold(lab.shell("daemon", f"setsid sleep {seconds} & echo up; sleep 0.2"), None)
    await lab.end_of("daemon")
    assert lab.out("daemon").read_text() == "up\n"
    assert not any(seconds in words_of(process) for process in all_processes())


async def test_running_names_the_first_process_and_its_mounts(lab: Lab) -> None:
    workload = lab.shell("where", "sleep 60")
    assert await lab.runtime.find_running(workload) is None
    await lab.runtime.start_cold(workload, None)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    assert ProcessId.from_pid(running.containers[0].root_pid).alive()
    assert "mnt[/dev]:/dev" in running.containers[0].externals
    assert str(running.containers[0].root_pid) in (running.containers[0].freezer / "cgroup.procs").read_text().split()
    await lab.runtime.kill("where")
    assert await lab.runtime.find_running(workload) is None


async def test_start_is_idempotent(lab: Lab) -> None:
    workload = lab.shell("twice", "echo once; sleep 60")
    await asyncio.gather(*(lab.runtime.start_cold(workload, None) for _ in range(3)))
    await lab.printed("twice", 1)
    assert lab.out("twice").read_text() == "once\n"


@pytest.mark.parametrize(
    ("command", "fields", "field"),
    [
        ("true", {"user": "no-such-user"}, "user"),
        ("true", {"user": "4294967000"}, "user"),
        ("no-such-program", {}, "argv"),
        ("./no/such/file", {}, "argv"),
        ("true", {"directory": Path("/no/such/folder")}, "cwd"),
    ],
)
async def test_job_that_cannot_start_ends_and_names_the_field(
    lab: Lab, command: str, fields: dict[str, object], field: str
) -> None:
    record = await lab.run(lab.job("wrong", command, **fields))
    assert record.exit_code is None
    assert record.failure is not None
    assert record.failure.message.startswith(f"{field}: ")
    assert record.failure.remedy


async def test_folder_that_the_supervisor_cannot_enter_ends_the_run_with_its_words(lab: Lab, tmp_path: Path) -> None:
    workload = lab.shell("vanished", "true", stdout=tmp_path)  # a folder cannot be appended to
    record = await lab.run(workload)
    assert record.failure is not None
    assert "Is a directory" in record.failure.message


async def test_run_directory_that_cannot_be_made_ends_the_run(lab: Lab) -> None:
    workload = lab.shell("full", "true")
    (lab.state / "runs" / "full").touch()  # where the directory would be
    record = await lab.run(workload)
    assert record.failure is not None
    assert "cannot be prepared" in record.failure.message
    (lab.state / "runs" / "full").unlink()


async def test_supervisors_start_again_when_their_nursery_is_killed(lab: Lab) -> None:
    await lab.runtime.start_cold(lab.shell("before", "sleep 60"), None)
    forkserver = lab.runtime._supervisors._forkserver
    assert forkserver is not None
    forkserver.kill()
    assert (await lab.run(lab.shell("after", "exit 6"))).exit_code == 6
    assert lab.runtime.usage("before") is not None
    await lab.runtime.terminate("before", grace_seconds=20)
    assert (await lab.end_of("before")).signal == "SIGTERM"


async def test_limit_that_this_machine_lacks_is_noted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = {name: path for name, path in lab.runtime._site.roots.items() if name != "pids"}
    monkeypatch.setattr(lab.runtime._site, "roots", directories)
    if "unified" in directories:
        pytest.skip("v2 has its controllers in one directory")
    await lab.runtime.start_cold(lab.shell("noted", "sleep 60", processes=50), None)
    notes = (await lab.beginning_of("noted")).notes
    assert notes == ("no limit of processes: this machine's control groups have no pids.max",)


async def test_fork_bomb_meets_its_limit(lab: Lab) -> None:
    script = "for i in $(seq 100); do sleep 60 & done; echo all"
    await lab.run(lab.shell("bomb", script, processes=20))
    assert "all" not in lab.lines("bomb")
    assert "fork" in lab.out("bomb").read_text()


async def test_give_up_ends_a_run_that_never_began(lab: Lab) -> None:
    workload = lab.shell("hopeless", "true")
    await lab.runtime.fail_waiting_workload(workload, "the policy forbids a cold start")
    failure = (await lab.end_of("hopeless")).failure
    assert failure is not None
    assert failure.message == "the policy forbids a cold start"
    assert not lab.out("hopeless").exists()


def shared_memory_segments() -> str:
    return subprocess.run(["ipcs", "-m"], capture_output=True, text=True, check=True).stdout
