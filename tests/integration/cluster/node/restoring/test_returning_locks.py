"""Containers come back stopped where they were stopped, and with the locks that they held."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.plan import read_result
from cedana_sched.snapshot import freezer
from tests import processes
from tests.integration.cluster.node.pods import Container, until
from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

DATABASE = """
import sqlite3, time
database = sqlite3.connect("/data/database", isolation_level=None)
database.execute("pragma journal_mode = wal")
database.execute("create table numbers (number integer primary key)")
number = 0
while True:
    number += 1
    with database:
        database.execute("insert into numbers values (?)", (number,))
    assert database.execute("select count(*) from numbers").fetchone() == (number,)
    print(number)
    time.sleep(0.005)
"""

STOPPED = """
import os, signal, time
sleeper = os.fork()
if sleeper == 0:
    number = 0
    while True:
        number += 1
        os.write(1, f"child {number}\\n".encode())
        time.sleep(0.01)
os.kill(sleeper, signal.SIGSTOP)
os.waitpid(sleeper, os.WUNTRACED)
while True:
    os.write(1, b"on\\n")
    time.sleep(0.01)
"""

HOLDER = """
import fcntl, signal, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 128)
print("locked", flush=True)
signal.pause()
"""


def liveness_locks(container: Container) -> list[tuple[str, ...]]:
    """SQLite's locks on byte 128 of `-shm`, held by this container's processes."""
    inode = (container.pod.volume / "database-shm").stat().st_ino
    pids = {str(pid) for pid in freezer.pids_in_cgroup(container.freezer)}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [
        (kind, access, start, end)
        for _, kind, _, access, pid, place, start, end in (line for line in lines if "->" not in line)
        if pid in pids and place.endswith(f":{inode}") and start == "128"
    ]


def test_a_database_that_others_open_survives_its_generations(site: Site) -> None:
    pod = site.node.pod("pod-1")
    main = pod.run("main", DATABASE)
    main.await_lines(3)
    last = 0
    for generation in range(2, 7):
        before = liveness_locks(main)
        assert before == [("POSIX", "READ", "128", "128")]
        images = site.take(pod)
        assert int(main.lines[0]) == last + 1
        last = int(main.lines[-1])
        pod = site.replacement(f"pod-{generation}", "main")
        assert site.bring_back(pod, images, "main") is None
        main = pod.containers["main"]
        main.await_lines(1)
        assert liveness_locks(main) == before
        database = pod.volume / "database"
        with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
            assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        main.await_progress()


def test_a_container_whose_lock_is_taken_does_not_run(site: Site) -> None:
    first = site.node.pod("pod-1")
    first.run("main", DATABASE).await_lines(3)
    images = site.take(first)
    second = site.replacement("pod-2", "main")

    async def prepared() -> None:
        """Volumes are laid, the plan is made, and the restore container lets the others go on."""
        task = asyncio.create_task(site.returns.restore(site.return_of(second), site.ref(second), images, site.facts))
        await asyncio.to_thread(site.let_start, second)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(prepared())
    command = [sys.executable, "-c", HOLDER, str(second.volume / "database-shm")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            main = second.container("main")
            main.make(["/bin/echo", "cold"])
            main.start()
        finally:
            holder.kill()
    expected = "held a read lock on /data/database-shm, which has been locked by process"
    with pytest.raises(RestoreError, match=expected):
        asyncio.run(site.returns.restore(site.return_of(second), site.ref(second), images, site.facts))
    again = second.containers["main"]
    again.await_lines(1)
    assert again.lines == ["cold"]
    result = read_result(str(site.state / "pods/pod-2"), "main")
    assert result is not None
    assert (result.restored, result.cold) == (False, True)


def test_a_stopped_process_of_a_container_comes_back_stopped(site: Site) -> None:
    first = site.node.pod("pod-1")
    main = first.run("main", STOPPED)
    main.await_lines(3)
    before = [line for line in main.lines if line.startswith("child")]
    images = site.take(first)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    again = second.containers["main"]
    again.await_lines(5)
    (child,) = processes.below(min(freezer.pids_in_cgroup(again.freezer)))
    until(lambda: child.status() == psutil.STATUS_STOPPED, child.status)
    assert not [line for line in again.lines if line.startswith("child")]
    child.send_signal(signal.SIGCONT)
    until(lambda: any(line.startswith("child") for line in again.lines), lambda: "the child's progress")
    continued = next(line for line in again.lines if line.startswith("child"))
    assert continued == f"child {len(before) + 1}"
