"""Processes have their locks again before their first instruction, also on files that they have mapped."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.preflight import find_obstacles

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

GENERATIONS = 5
LIVENESS = "128"
"""The byte of `-shm` that says that somebody has the database open; SQLite calls it the dead man's switch."""

DATABASE = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("pragma journal_mode = wal")
database.execute("create table numbers (number integer primary key, text text)")
number = 0
while True:
    number += 1
    with database:
        database.execute("insert into numbers values (?, ?)", (number, "x" * 500))
    assert database.execute("select count(*) from numbers").fetchone() == (number,)
    print(number)
    time.sleep(0.002)
"""

FAMILY = """
import fcntl, mmap, os, signal, sys, threading, time

def lock(file, kind, start, length):
    fcntl.lockf(file, kind, length, start)

def mapped(name):
    file = open(name, "w+b")
    file.truncate(8192)
    return file, mmap.mmap(file.fileno(), 8192)

folder = sys.argv[1]
shared, view = mapped(folder + "/shared")
lock(shared, fcntl.LOCK_SH, 0, 10)
gone, gone_view = mapped(folder + "/gone")
os.unlink(folder + "/gone")
lock(gone, fcntl.LOCK_EX, 100, 0)
other, other_view = mapped(folder + "/other")
threading.Thread(target=lock, args=(other, fcntl.LOCK_EX, 5, 7)).start()
flocked, flocked_view = mapped(folder + "/flocked")
fcntl.flock(flocked, fcntl.LOCK_EX)
owned, owned_view = mapped(folder + "/owned")
import struct
fcntl.fcntl(owned, 37, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, 0, 3, 4, 0))  # F_OFD_SETLK
ready, tell = os.pipe()
if os.fork() == 0:
    child, child_view = mapped(folder + "/child")
    shared_again = open(folder + "/shared", "r+b")
    lock(shared_again, fcntl.LOCK_SH, 0, 20)
    lock(child, fcntl.LOCK_EX, 1, 1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    threading.Thread(target=signal.pause, daemon=True)
    os.write(tell, b".")
    signal.pause()
    os._exit(1)
if os.fork() == 0:
    third = open(folder + "/shared", "r+b")
    third_view = mmap.mmap(third.fileno(), 4096)
    lock(third, fcntl.LOCK_EX, 4000, 8)
    os.write(tell, b".")
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(1)
os.read(ready, 1), os.read(ready, 1)
while True:
    print("on", flush=True)
    time.sleep(0.005)
"""


def locks_of(lab: Laboratory) -> list[tuple[str, ...]]:
    """All locks of the tree as the kernel lists them, each with its process's number inside; an OFD lock has none."""
    inodes = {str(path.stat().st_ino) for path in lab.folder.iterdir()}
    numbers = {str(pid): number_inside(pid) for pid in freezer.pids_in_cgroup(lab.cgroup)}
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, access, pid, place, start, end = line.replace("->", "").split()
        if pid in numbers or (kind == "OFDLCK" and place.split(":")[-1] in inodes):
            found.append((kind, access, numbers.get(pid, pid), place, start, end))
    return sorted(found)


def held(lab: Laboratory) -> list[tuple[str, ...]]:
    freezer.freeze(lab.cgroup)
    found = locks_of(lab)
    freezer.thaw(lab.cgroup)
    return found


def lasting(locks: list[tuple[str, ...]], database: Path) -> list[tuple[str, ...]]:
    """Without those that come and go with each transaction: SQLite's other bytes of the index of the log."""
    inode = database.stat().st_ino
    return [lock for lock in locks if lock[3].endswith(f":{inode}") or lock[4] == LIVENESS]


def number_inside(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in status if line.startswith("NSpid:")).split()[-1]


def without_inodes(locks: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """A deleted file is another one when it comes back."""
    return sorted((kind, access, pid, start, end) for kind, access, pid, _, start, end in locks)


def open_and_close(database: Path) -> int:
    """What a person does who looks into it; the last one to close removes the log and what is beside it."""
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        (count,) = connection.execute("select count(*) from numbers").fetchone()
        return int(count)


def test_a_database_that_others_open_survives_its_generations(either_lab: Laboratory) -> None:
    lab = either_lab
    database = lab.folder / "database"
    lab.python(DATABASE, str(database))
    lab.await_lines(5)
    shm = database.parent / "database-shm"
    inode = shm.stat().st_ino
    for _ in range(GENERATIONS):
        freezer.freeze(lab.cgroup)
        before = lasting(locks_of(lab), database)
        assert {(lock[3].split(":")[-1], lock[4]) for lock in before} >= {(str(inode), LIVENESS)}
        lab.dump()
        lab.kill()
        lab.restore()
        assert lasting(held(lab), database) == before
        lab.await_progress()
        assert open_and_close(database) >= 5
        assert shm.stat().st_ino == inode
        lab.await_progress()
    lab.kill()
    numbers = [int(line) for line in lab.lines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert open_and_close(database) >= numbers[-1]


def test_locks_of_a_family_come_back(either_lab: Laboratory) -> None:
    """Of parent and child, on a deleted file, of a thread, of a stopped process; flocks and OFD locks as well."""
    lab = either_lab
    lab.python(FAMILY, str(lab.folder))
    lab.await_lines(2)
    before = held(lab)
    assert len(before) == 8, before
    for _ in range(3):
        lab.next_generation()
        lab.await_progress()
        assert without_inodes(held(lab)) == without_inodes(before)


LEASED = """
import fcntl, mmap, sys, time
file = open(sys.argv[1], "rb")
view = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
while True:
    print("leased")
    time.sleep(0.01)
"""


def test_a_lease_on_a_mapped_file_is_refused_before_the_freeze(lab: Laboratory) -> None:
    """CRIU opens the file once more for the mapping, which breaks the lease."""
    file = lab.folder / "leased"
    file.write_bytes(bytes(4096))
    lab.python(LEASED, str(file))
    lab.await_lines(1)
    (obstacle,) = find_obstacles(freezer.pids_in_cgroup(lab.cgroup))
    assert f"has a lease on a file that it has mapped ({file})" in str(obstacle)


HOLDER = """
import fcntl, signal, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""


def test_a_lock_that_somebody_else_has_taken_fails_the_restore(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(FAMILY, str(lab.folder))
    lab.await_lines(2)
    freezer.freeze(lab.cgroup)
    lab.dump()
    lab.kill()
    so_far = lab.lines()
    command = [sys.executable, "-c", HOLDER, str(lab.folder / "child")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            expected = rf"process \d+ held a write lock on .*/child, which has been locked by process {holder.pid} "
            with pytest.raises(RestoreError, match=expected):
                lab.restore()
        finally:
            holder.kill()
    assert freezer.pids_in_cgroup(lab.cgroup) == []
    assert lab.lines() == so_far
    lab.pid = 0
    lab.restore()
    lab.await_progress()
