"""Kinds of kernel objects that programs hold, each checked by the program itself over three generations."""

from __future__ import annotations

import pwd
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.features import check_features
from cedana_sched.snapshot.images import folder_reader
from cedana_sched.snapshot.preflight import find_obstacles
from cedana_sched.snapshot.rlimit_workaround import has_cap_sys_resource
from cedana_sched.snapshot.snapshot_contents import inspect_snapshot

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

TIMERS_AND_EPOLL = """
import ctypes, os, select, signal, struct, threading, time
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(1, 0)
libc.timerfd_settime(timer, 0, struct.pack("qqqq", 0, 10_000_000, 0, 10_000_000), None)
counter = os.eventfd(7)
reading, writing = os.pipe()
epoll = select.epoll()
for descriptor in (timer, reading):
    epoll.register(descriptor, select.EPOLLIN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
expired = 0
began = time.monotonic()
while True:
    os.write(writing, b"x")
    for descriptor, _ in epoll.poll(1):
        if descriptor == timer:
            expired += struct.unpack("Q", os.read(timer, 8))[0]
        else:
            assert os.read(reading, 1) == b"x"
    assert signal.SIGUSR1 in signal.sigpending(), "the pending signal is lost"
    assert time.monotonic() >= began, "the clock went backwards"
    print(f"timerfd {expired} alarms {len(ticks)}")
    time.sleep(0.003)
"""

TERMINAL = """
import fcntl, os, pty, struct, termios, time
child, master = pty.fork()
if child == 0:
    while True:
        print("echo " + input())
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
pending = b""
number = 0
while True:
    number += 1
    os.write(master, f"{number}\\n".encode())
    while f"echo {number}\\r\\n".encode() not in pending:
        pending += os.read(master, 1000)
    pending = b""
    assert struct.unpack("HHHH", fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)))[:2] == (33, 111)
    assert os.tcgetpgrp(master) == child
    print(number)
    time.sleep(0.003)
"""

UNREAD_TERMINAL = """
import os, pty, time
child, master = pty.fork()
if child == 0:
    while True:
        print("echo " + input())
number = 0
while True:
    number += 1
    os.write(master, f"{number}\\n".encode())
    print(number)
    time.sleep(0.2)  # it waits at the master, and is frozen there as a rule
    said = os.read(master, 1000)
    while not said.endswith(f"echo {number}\\r\\n".encode()):
        said += os.read(master, 1000)
    assert b"\\r\\r" not in said, said
"""
"""Its output is that of a terminal as it is by default: with "\\r\\n" for each "\\n"."""

RAW_TERMINAL = """
import os, pty, time, tty
child, master = pty.fork()
if child == 0:
    tty.setraw(0)
    while True:
        os.write(1, b"echo " + os.read(0, 1000) + b"\\r\\n")
number = 0
time.sleep(0.2)
while True:
    number += 1
    os.write(master, str(number).encode())
    print(number)
    time.sleep(0.2)
    said = os.read(master, 1000)
    while not said.endswith(f"echo {number}\\r\\n".encode()):
        said += os.read(master, 1000)
"""

SHARED_MEMORY = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, 1 << 20, 0o1600)
assert segment >= 0
address = libc.shmat(segment, None, 0)
shared = (ctypes.c_uint64 * 2).from_address(address)
named = open("/dev/shm/counter", "w+b")
named.truncate(4 << 20)
page = mmap.mmap(named.fileno(), 4 << 20)
memfd = os.memfd_create("counter")
os.ftruncate(memfd, 4096)
other = mmap.mmap(memfd, 4096)
queue = libc.msgget(0, 0o1600)
assert queue >= 0
if os.fork() == 0:
    while True:
        shared[1] = shared[0]
        time.sleep(0.001)
number = 0
while True:
    number += 1
    shared[0] = number
    page[:8] = other[:8] = number.to_bytes(8, "little")
    while shared[1] != number:
        time.sleep(0.0005)
    with open("/dev/shm/counter", "rb") as again:
        assert int.from_bytes(again.read(8), "little") == number
    assert int.from_bytes(os.pread(memfd, 8, 0), "little") == number
    print(number)
"""

SIGNALS = """
import os, signal, sys, time
seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append("term"))
signal.signal(signal.SIGHUP, signal.SIG_IGN)
parent = os.getpid()
if os.fork() == 0:
    while True:
        os.kill(parent, signal.SIGTERM)
        os.kill(parent, signal.SIGHUP)
        time.sleep(0.004)
while True:
    before = len(seen)
    while len(seen) == before:
        signal.pause() if not signal.sigpending() else None
    print(len(seen))
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(TIMERS_AND_EPOLL, id="timers-and-epoll"),
        pytest.param(TERMINAL, id="terminal"),
        pytest.param(UNREAD_TERMINAL, id="unread-terminal"),
        pytest.param(RAW_TERMINAL, id="raw-terminal"),
        pytest.param(SHARED_MEMORY, id="shared-memory"),
        pytest.param(SIGNALS, id="signals"),
    ],
)
def test_it_goes_on_over_three_generations(lab: Laboratory, program: str) -> None:
    lab.python(program)
    for _ in range(3):
        lab.await_progress()
        lab.next_generation()
        lab.await_progress()
    assert not any("Error" in line for line in lab.lines())


def test_the_exit_status_survives(lab: Laboratory) -> None:
    lab.python("import time\nprint('started')\ntime.sleep(1)\nraise SystemExit(42)")
    lab.await_lines(1)
    lab.next_generation()
    assert lab.wait() == 42


def start_as_nobody(lab: Laboratory) -> str:
    nobody = pwd.getpwnam("nobody")
    lab.python(
        "import os, resource, time\n"
        f"os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (123, 456))\n"
        "while True:\n"
        "    print(os.getuid(), resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "    time.sleep(0.002)\n"
    )
    lab.await_lines(5)
    return f"{nobody.pw_uid} (123, 456)"


def test_a_job_of_another_user(lab: Laboratory) -> None:
    line = start_as_nobody(lab)
    lab.next_generation()
    lab.await_progress()
    assert set(lab.lines()) == {line}


def test_without_the_capability_and_the_preload_the_reason_is_told(lab: Laboratory) -> None:
    if has_cap_sys_resource():
        pytest.skip("root of this machine has CAP_SYS_RESOURCE")
    start_as_nobody(lab)
    lab.toolchain = replace(lab.toolchain, preload=None)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="limits of a process of another user"):
        lab.dump()
    lab.await_progress()


def test_what_a_snapshot_holds(lab: Laboratory) -> None:
    lab.python(SHARED_MEMORY)
    lab.await_lines(5)
    assert find_obstacles(freezer.pids_in_cgroup(lab.cgroup)) == []
    freezer.freeze(lab.cgroup)
    lab.dump()
    contents = inspect_snapshot(lab.toolchain, folder_reader(lab.images))
    assert [process.command for process in contents.processes] == ["tini", "python3", "python3"]
    assert [process.parent for process in contents.processes] == [0, 1, 2]
    assert {"pid", "mnt", "ipc"} <= set(contents.own_namespaces)
    assert "net" not in contents.own_namespaces
    assert {"/", "/proc", "/dev", "/dev/shm"} <= set(contents.mounts)
    job = contents.processes[1]
    assert any(file.name == str(lab.output) and file.descriptor == 1 for file in job.files)
    assert 1 << 20 < contents.memory_bytes < 1 << 28


def test_files_in_shared_memory_come_back_and_cost_no_compression(lab: Laboratory) -> None:
    lab.python(
        "import hashlib, time\n"
        "open('/dev/shm/large', 'wb').write(b'x' * (8 << 20))\n"
        "while True:\n"
        "    print(hashlib.sha256(open('/dev/shm/large', 'rb').read()).hexdigest())\n"
        "    time.sleep(0.002)\n"
    )
    lab.await_lines(5)
    lab.next_generation()
    lab.await_progress()
    assert len(set(lab.lines())) == 1
    (image,) = lab.images.glob("tmpfs-*.tar.gz.img")
    assert image.stat().st_size > 8 << 20


def test_obstacles_are_seen_before_the_dump(lab: Laboratory) -> None:
    lab.python(
        "import ctypes, time\n"
        "assert ctypes.CDLL(None).syscall(425, 4, (ctypes.c_char * 120)()) >= 0\n"
        "print('running')\n"
        "time.sleep(60)\n"
    )
    lab.await_lines(1)
    (obstacle,) = find_obstacles(freezer.pids_in_cgroup(lab.cgroup))
    assert obstacle.problem == "uses io_uring"
    assert "python3" in str(obstacle)


def test_the_machine_is_described(lab: Laboratory) -> None:
    facts = {fact.name: fact for fact in check_features(lab.toolchain)}
    assert facts["criu"].good
    assert facts["criu"].needed
    assert all(fact.sentence for fact in facts.values())


def test_output_files_go_on_where_they_stopped(lab: Laboratory) -> None:
    lab.python("import time\nfor number in range(10**9):\n    print(number)\n    time.sleep(0.002)")
    lab.await_lines(5)
    inode = lab.output.stat().st_ino
    lab.next_generation()
    lab.await_progress()
    assert lab.output.stat().st_ino == inode
