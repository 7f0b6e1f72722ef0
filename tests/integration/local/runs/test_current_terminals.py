"""Runs whose programs have /dev/tty open: they read, write and control the terminal on after each restore."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.open_terminals import NAMELESS
from cedana_sched.snapshot.preflight import find_obstacles
from tests.integration.local.runs.test_terminals import BASH, Client, _close_connections, seen

if TYPE_CHECKING:
    from cedana_sched.model.preemption import WorkloadRef
    from tests.integration.local.runs.conftest import Lab

pytestmark = pytest.mark.criu

__all__ = ["_close_connections"]

DASH = ("/bin/dash", "-i")
"""Interactive, it keeps /dev/tty open, and controls its jobs by it."""


async def _send(client: Client, line: str) -> None:
    client.send(line.encode() + b"\r")
    await asyncio.to_thread(client.acknowledged)


async def _press(lab: Lab, run: WorkloadRef, client: Client, key: bytes, until: str) -> None:
    """Press a key for a signal, and wait until the output since matches a pattern."""
    before = len(lab.out(run.uid).read_bytes())
    client.send(key)
    assert await asyncio.to_thread(client.acknowledged) == 1
    await seen(lab, run, until, since=before)


async def test_a_shell_controls_its_jobs_by_it(lab: Lab) -> None:
    run = lab.job("dash-0", *DASH, has_terminal=True, environment={"PS1": "$ "})
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, r"\$ $")
    client = Client(lab, run)
    await client.type("stty -echo", r"\r\n\$ $")
    for generation in (1, 2):
        await _send(client, "cat")
        await client.type("in front", "in front\r\n")
        run = await lab.next_generation(run, f"dash-{generation}")
        client = Client(lab, run)
        await client.type("still there", "still there\r\n")
        await _press(lab, run, client, b"\x1a", r"Stopped +cat\r\n\$ $")  # the shell takes the terminal back
        await client.type("fg", "cat\r\n")
        await _press(lab, run, client, b"\x03", r"\$ $")
        await client.type("read -r word </dev/tty; echo got $word\rword", "got word\r\n\\$ $")
    await _send(client, "exit 3")
    assert (await lab.end_of(run.uid)).exit_code == 3


READER = """
import fcntl, os, sys
own = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
log = os.open("/dev/tty", os.O_WRONLY | os.O_APPEND)
os.set_inheritable(log, True)
asking, answering = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(asking[0], 1):
        flags = fcntl.fcntl(log, fcntl.F_GETFL) & ~os.O_LARGEFILE
        fcntl.fcntl(log, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        os.write(answering[1], b".")
    os._exit(0)
os.write(own, b"ready\\n")
while line := os.read(own, 100).decode().strip():
    before = os.get_blocking(log)
    os.write(asking[1], b"."), os.read(answering[0], 1)
    os.write(log, (
        f"{line} {os.readlink(f'/proc/self/fd/{own}')} {os.get_inheritable(own)} {os.get_inheritable(log)}"
        f" {fcntl.fcntl(own, fcntl.F_GETFL) & os.O_ACCMODE} {fcntl.fcntl(log, fcntl.F_GETFL) & os.O_ACCMODE}"
        f" {bool(fcntl.fcntl(log, fcntl.F_GETFL) & os.O_APPEND)} {before} {os.get_blocking(log)}\\n"
    ).encode())
    os.set_blocking(log, True)
os.close(asking[1])
"""


async def _start_reader(lab: Lab) -> tuple[WorkloadRef, Client]:
    """Start a program under a shell, which reads from /dev/tty, and shares a file of it with another."""
    script = lab.state / "reader.py"
    script.write_text(READER)
    run = lab.job("under-0", *BASH, has_terminal=True, environment={"PS1": "$ "})
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, r"\$ $")
    client = Client(lab, run)
    await client.type("stty -echo", r"\r\n\$ $")
    await client.type(f"/usr/bin/python3 {script}; echo over", "ready\r\n")
    return run, client


SAME = "False True 2 1 True True False\r\n"
"""Descriptor flags, access modes, flags, and that the other process shares the file."""


async def test_a_program_under_a_shell_reads_on(lab: Lab) -> None:
    run, client = await _start_reader(lab)
    assert await client.type("one", r"one .*\r\n") == f"one /dev/tty {SAME}"
    for generation in (1, 2):
        run = await lab.next_generation(run, f"under-{generation}")
        client = Client(lab, run)
        assert await client.type("two", r"two .*\r\n") == f"two /dev/pts/0 {SAME}"
    await client.type("", r"over\r\n\$ $")
    await _send(client, "exit 3")
    assert (await lab.end_of(run.uid)).exit_code == 3


async def test_a_snapshot_leaves_the_files_of_programs_that_run_on(lab: Lab) -> None:
    run, client = await _start_reader(lab)
    images, _ = await lab.dump(run)
    images.rename(images.with_name("earlier"))
    running = await lab.runtime.find_running(run)
    assert running is not None
    freezer.thaw(running.containers[0].freezer)
    assert await client.type("one", r"one .*\r\n") == f"one /dev/tty {SAME}"
    run = await lab.next_generation(run, "under-1")
    client = Client(lab, run)
    assert await client.type("two", r"two .*\r\n") == f"two /dev/pts/0 {SAME}"


ELSEWHERE = """
import fcntl, os, pty, sys, termios, time
def hold(slave, close):
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    file = os.open("/dev/tty", os.O_RDWR)
    if close: os.close(slave)
    print("open", flush=True)
    while line := os.read(file, 100): os.write(file, b"got " + line)
    os._exit(0)
master, slave = os.openpty()
if os.fork() == 0:
    os.close(master)
    hold(slave, sys.argv[1] == "nameless")
os.close(slave)
os.open("/dev/tty", os.O_RDWR)
for line in sys.stdin:
    os.write(master, line.encode())
    data = b""
    while b"got" not in data or not data.endswith(b"\\n"): data += os.read(master, 100)
    print(data.decode().replace("\\r", ""), flush=True)
"""


async def test_a_terminal_that_a_program_has_made_itself(lab: Lab) -> None:
    run = lab.job("pair-0", "/usr/bin/python3", "-c", ELSEWHERE, "named", has_terminal=True)
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "open")
    for generation in (1, 2):
        run = await lab.next_generation(run, f"pair-{generation}")
        client = Client(lab, run)
        assert re.search("got hello", await client.type("hello", "got hello\r\n"))


async def test_a_terminal_that_is_open_nowhere_else_is_refused(lab: Lab) -> None:
    run = lab.job("pair-0", "/usr/bin/python3", "-c", ELSEWHERE, "nameless", has_terminal=True)
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "open")
    running = await lab.runtime.find_running(run)
    assert running is not None
    (found,) = find_obstacles(freezer.pids_in_cgroup(running.containers[0].freezer))
    assert (found.command, found.reason) == ("python3", "HoldsNamelessTerminal")
    with pytest.raises(DumpError, match=f"has /dev/tty open, and {NAMELESS}"):
        await lab.dump(run)


LEFT = """
import os, sys, time
file = os.open("/dev/tty", os.O_RDWR)
if os.fork() > 0: os._exit(0)
os.setsid()
print("left", flush=True)
while line := os.read(file, 100): os.write(file, b"got " + line)
"""


async def test_a_program_that_has_left_the_session(lab: Lab) -> None:
    run = lab.job(
        "left-0",
        "/bin/dash",
        "-c",
        'stty -echo; /usr/bin/python3 -c "$0"; while sleep 1; do :; done',
        LEFT,
        has_terminal=True,
    )
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "left")
    for generation in (1, 2):
        run = await lab.next_generation(run, f"left-{generation}")
        client = Client(lab, run)
        assert await client.type("hello", "got hello\r\n") == "got hello\r\n"


HUNG = """
import fcntl, os, signal, sys, termios, time
master, slave = os.openpty()
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        file = os.open("/dev/tty", os.O_RDWR)
        os.close(slave); os.close(master)
        os.close(writer)
        while True:
            os.read(reader, 1)
            try:
                said = repr(os.read(file, 100))
            except OSError as error:
                said = str(error)
            print("read", said, flush=True)
            sys.stdin.readline()
    time.sleep(1)
    os._exit(0)
os.close(slave); os.close(master)
os.wait()
os.close(writer)
sys.stdin.readline()
"""


async def test_a_terminal_that_has_hung_up_is_refused(lab: Lab) -> None:
    run = lab.job("hung-0", "/usr/bin/python3", "-c", HUNG, has_terminal=True)
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "read")
    with pytest.raises(DumpError, match="has /dev/tty open, and its terminal has hung up"):
        await lab.dump(run)


async def test_unread_input_is_kept_beside_a_further_file(lab: Lab) -> None:
    """CRIU links the files of a terminal in pairs, whichever they are: the input would be written as output."""
    run = lab.shell("slow-0", "stty -echo; exec 5</dev/tty; echo ready; read go </dev/null; sleep 1; read line <&5;"
                    " echo got $line", has_terminal=True)  # fmt: skip
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "ready")
    client = await asyncio.to_thread(Client, lab, run)
    await _send(client, "early")
    run = await lab.next_generation(run, "slow-1")
    await lab.end_of(run.uid)
    assert lab.out(run.uid).read_bytes() == b"ready\r\ngot early\r\n"
