"""A job starts in namespaces and control groups of its own, and its end is told as it was."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from cedana_sched.local.processes import ProcessId
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer

NOBODY = pwd.getpwnam("nobody")


@pytest.mark.parametrize("code", [0, 3, 127])
async def test_exit_code_is_told(lab, code: int) -> None:
    record = await lab.run(lab.shell("codes", f"exit {code}"))
    assert (record.exit_code, record.signal, record.lost, record.failure) == (code, None, False, None)


async def test_signal_that_killed_the_job_is_told(lab) -> None:
    record = await lab.run(lab.shell("signals", "kill -SEGV $$"))
    assert (record.exit_code, record.signal, record.oom_killed) == (None, "SIGSEGV", False)


async def test_job_sees_only_its_own_processes_and_tini_is_its_init(lab) -> None:
    await lab.run(lab.shell("pids", "cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l; echo $$"))
    init, count, own = lab.out("pids").read_text().split()
    assert init.startswith("tini")
    assert int(count) <= 5
    assert int(own) < 10


async def test_orphans_of_the_job_are_reaped(lab) -> None:
    script = "(sleep 0.05 & ) ; sleep 0.3; cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    await lab.run(lab.shell("orphans", script))
    assert lab.out("orphans").read_text().strip() == "0"


async def test_system_v_shared_memory_of_a_job_is_invisible_outside(lab) -> None:
    outside = subprocess.run(["ipcs", "-m"], capture_output=True, text=True, check=True).stdout
    await lab.runtime.start_cold(lab.shell("ipc", "ipcmk -M 4096; ipcs -m | grep -c ^0x; sleep 60"), None)
    lines = await lab.printed("ipc", 2)
    assert lines[-1].strip() == "1"
    assert subprocess.run(["ipcs", "-m"], capture_output=True, text=True, check=True).stdout == outside


async def test_shared_memory_files_are_the_jobs_own(lab) -> None:
    await lab.run(lab.shell("shm", "touch /dev/shm/mine; ls /dev/shm"))
    assert lab.out("shm").read_text() == "mine\n"
    assert not Path("/dev/shm/mine").exists()


async def test_environment_and_directory_are_those_of_the_job(lab, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_SECRET", "not for jobs")
    workload = lab.shell("env", "pwd; echo $COLOUR; echo [$ENGINE_SECRET]; echo $HOME", environment={"COLOUR": "blue"})
    lab.jobs["env"] = lab.jobs["env"].__class__(
        argv=lab.jobs["env"].argv, stdout=lab.out("env"), stderr=lab.out("env"), directory=tmp_path,
        environment={"COLOUR": "blue"},
    )  # fmt: skip
    await lab.run(workload)
    assert lab.out("env").read_text().splitlines() == [str(tmp_path), "blue", "[]", pwd.getpwuid(os.geteuid()).pw_dir]


async def test_job_runs_as_its_user_and_owns_its_output(lab) -> None:
    await lab.run(lab.shell("user", "id -u; id -g; echo again >> /dev/stdout", user="nobody"))
    assert lab.out("user").read_text().split() == [str(NOBODY.pw_uid), str(NOBODY.pw_gid), "again"]
    assert lab.out("user").stat().st_uid == NOBODY.pw_uid


async def test_memory_limit_kills_and_is_reported_as_such(lab) -> None:
    record = await lab.run(lab.python("oom", "x = b'1' * (256 << 20)", memory_bytes=64 << 20))
    assert (record.signal, record.oom_killed) == ("SIGKILL", True)
    assert record.max_memory_bytes <= 64 << 20


async def test_cpu_limit_holds(lab) -> None:
    script = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    record = await lab.run(lab.python("quota", script, cpus=0.25))
    assert 0.1 < record.cpu_seconds < 0.5


async def test_usage_of_a_running_job_is_told(lab) -> None:
    workload = lab.python("usage", "x = b'1' * (64 << 20); print(len(x)); import time; time.sleep(60)")
    await lab.runtime.start_cold(workload, None)
    await lab.printed("usage", 1)
    usage = lab.runtime.usage("usage")
    assert usage is not None
    assert usage.memory_bytes > 64 << 20
    assert usage.cpu_seconds > 0


async def test_terminate_lets_the_job_end_by_itself(lab) -> None:
    await lab.runtime.start_cold(lab.shell("polite", "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait"), None)
    await lab.printed("polite", 1)
    await lab.runtime.terminate("polite", grace_seconds=20)
    assert (await lab.end_of("polite")).exit_code == 7
    assert lab.out("polite").read_text() == "up\nbye\n"


async def test_terminate_kills_after_the_grace(lab) -> None:
    await lab.runtime.start_cold(lab.shell("deaf", "trap '' TERM; echo up; while :; do sleep 1; done"), None)
    await lab.printed("deaf", 1)
    await lab.runtime.terminate("deaf", grace_seconds=0.2)
    assert (await lab.end_of("deaf")).signal == "SIGKILL"


async def test_frozen_job_can_be_killed_and_executes_nothing_more(lab) -> None:
    workload = lab.python("frozen", "import itertools\nfor i in itertools.count(): print(i)")
    await lab.runtime.start_cold(workload, None)
    await lab.printed("frozen", 10)
    running = await lab.runtime.running(workload)
    await asyncio.to_thread(freezer.freeze, running.freezer)
    size = lab.out("frozen").stat().st_size
    await lab.runtime.kill("frozen")
    assert (await lab.end_of("frozen")).signal == "SIGKILL"
    assert lab.out("frozen").stat().st_size == size


async def test_processes_that_leave_their_session_end_with_the_job(lab) -> None:
    await lab.runtime.start_cold(lab.shell("daemon", "setsid sleep 61 & echo up; sleep 0.2"), None)
    await lab.end_of("daemon")
    assert subprocess.run(["pgrep", "-f", "sleep 61"], capture_output=True, check=False).stdout == b""


async def test_running_names_the_first_process_and_its_mounts(lab) -> None:
    workload = lab.shell("where", "sleep 60")
    assert await lab.runtime.running(workload) is None
    await lab.runtime.start_cold(workload, None)
    running = await lab.runtime.running(workload)
    assert ProcessId.of(running.root_pid).alive()
    assert "mnt[/dev]:/dev" in running.externals
    assert str(running.root_pid) in (running.freezer / "cgroup.procs").read_text().split()
    await lab.runtime.kill("where")
    assert await lab.runtime.running(workload) is None


async def test_start_is_idempotent(lab) -> None:
    workload = lab.shell("twice", "echo once; sleep 60")
    await asyncio.gather(*(lab.runtime.start_cold(workload, None) for _ in range(3)))
    await lab.printed("twice", 1)
    assert lab.out("twice").read_text() == "once\n"


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"user": "no-such-user"}, "user"), ({"argv": ("no-such-program",)}, "argv"), ({"directory": "/no/dir"}, "cwd")],
)
async def test_job_that_cannot_start_ends_and_names_the_field(lab, fields: dict, field: str) -> None:
    workload = lab.shell("wrong", "true")
    old = lab.jobs["wrong"]
    known = {name: getattr(old, name) for name in old.__struct_fields__}
    if "directory" in fields:
        fields = {"directory": Path(fields["directory"])}
    lab.jobs["wrong"] = old.__class__(**(known | fields))
    record = await lab.run(workload)
    assert record.failure.message.startswith(f"{field}: ")
    assert record.failure.remedy
    assert record.exit_code is None


async def test_give_up_ends_a_run_that_never_began(lab) -> None:
    workload: WorkloadRef = lab.shell("hopeless", "true")
    await lab.runtime.give_up(workload, "the policy forbids a cold start")
    assert (await lab.end_of("hopeless")).failure.message == "the policy forbids a cold start"
    assert not lab.out("hopeless").exists()
