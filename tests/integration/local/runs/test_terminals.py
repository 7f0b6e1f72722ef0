"""A run with a terminal: real shells keep their state, and no byte of input or output is lost or repeated."""

from __future__ import annotations

import asyncio
import re
import select
import socket
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs import terminal_protocol
from cedana_sched.snapshot import freezer
from tests.integration.local.runs.conftest import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cedana_sched.model.preemption import WorkloadRef
    from tests.integration.local.runs.conftest import Lab

pytestmark = pytest.mark.criu

BASH = ("/bin/bash", "--norc", "--noprofile", "--noediting", "-i")


_connections: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    while _connections:
        _connections.pop().close()


class Client:
    """One client of a run's keeper, which waits in threads."""

    def __init__(self, lab: Lab, run: WorkloadRef) -> None:
        self._lab = lab
        self._run = run
        self.connection = terminal_protocol.connect(lab.state / "runs" / run.uid)
        _connections.append(self.connection)
        self.first = self._receive()

    def _receive(self) -> bytes:
        ready, _, _ = select.select([self.connection], [], [], TIMEOUT_SECONDS)
        assert ready, "the keeper does not answer"
        return self.connection.recv(64)

    def send(self, text: bytes) -> None:
        self.connection.send(terminal_protocol.encode_input(text))

    def acknowledged(self) -> int:
        return terminal_protocol.decode_count(self._receive())

    def resize(self, rows: int, columns: int) -> None:
        self.connection.send(terminal_protocol.encode_size(rows, columns))

    async def type(self, text: str, until: str) -> str:
        """Type a line, and return the output since, once it matches a pattern."""
        before = len(self._lab.out(self._run.uid).read_bytes())
        self.send(text.encode() + b"\r")
        assert await asyncio.to_thread(self.acknowledged) == len(text) + 1
        return await seen(self._lab, self._run, until, since=before)


async def seen(lab: Lab, run: WorkloadRef, pattern: str, since: int = 0) -> str:
    """Wait until the output since a position matches a pattern; return that output."""
    text = ""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not re.search(pattern, text):  # written by another process
                await asyncio.sleep(0.01)
                text = lab.out(run.uid).read_bytes()[since:].decode() if lab.out(run.uid).exists() else ""
    except TimeoutError:
        pytest.fail(f"{pattern!r} was not seen; but {text!r}")
    return text


async def test_shell_keeps_its_state_its_terminal_and_its_jobs(lab: Lab) -> None:
    run = lab.job("bash-0", *BASH, has_terminal=True, environment={"PS1": "$ ", "HOME": "/root"})
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, r"\$ $")
    client = Client(lab, run)
    client.resize(33, 111)
    await client.type("kept=before; stty intr ^X -echo; sleep 1000 &", r"\[1\] \d+\s+\$ $")
    command = 'echo "$(tty) $(stty size) intr=$(stty -a | grep -o "intr = [^;]*") $kept $(jobs -r | wc -l)"'
    expected = "/dev/pts/0 33 111 intr=intr = ^X before 1\r\n$ "
    assert await client.type(command, r"\$ $") == expected
    for generation in (1, 2):
        run = await lab.next_generation(run, f"bash-{generation}")
        client = Client(lab, run)
        assert await client.type(command, r"\$ $") == expected
    # the foreground group is as before: the key for SIGINT ends what runs in front, and not the shell
    client.send(b"cat\r")
    await asyncio.to_thread(client.acknowledged)
    await client.type("through cat", "through cat\r\n")
    before = len(lab.out(run.uid).read_bytes())
    client.send(b"\x18")
    await seen(lab, run, r"\$ $", since=before)
    client.send(b"kill %1; exit 7\r")
    assert (await lab.end_of(run.uid)).exit_code == 7


async def test_what_runs_in_front_stays_in_front(lab: Lab) -> None:
    run = lab.job("front-0", *BASH, has_terminal=True, environment={"PS1": "$ "})
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, r"\$ $")
    client = Client(lab, run)
    await client.type("stty -echo", r"\r\n\$ $")
    client.send(b"cat; echo over\r")
    await asyncio.to_thread(client.acknowledged)
    await client.type("in front", "in front\r\n")
    run = await lab.next_generation(run, "front-1")
    client = Client(lab, run)
    await client.type("still there", "still there\r\n")
    before = len(lab.out(run.uid).read_bytes())
    client.send(b"\x03")
    assert await asyncio.to_thread(client.acknowledged) == 1
    assert await seen(lab, run, r"\$ $", since=before) == "\r\n$ "
    client.send(b"exit 3\r")
    assert (await lab.end_of(run.uid)).exit_code == 3


async def test_a_job_that_ends_at_once_has_all_its_output(lab: Lab) -> None:
    run = lab.shell("short", "tty; ls -l /proc/self/fd | grep -c ptmx; exit 4", has_terminal=True)
    assert (await lab.run(run)).exit_code == 4
    assert lab.out(run.uid).read_bytes() == b"/dev/pts/0\r\n0\r\n"


COUNTING = """
import itertools, sys, time
for number in itertools.count(1):
    print(number, flush=True)
    time.sleep(0.001)
    if number == 1500: raise SystemExit(9)
"""


async def test_output_arrives_once_and_in_order(lab: Lab) -> None:
    run = lab.python("count-0", COUNTING, has_terminal=True)
    await lab.runtime.start_cold(run, None)
    for generation in (1, 2, 3):
        await lab.printed(run.uid, len(lab.lines(run.uid)) + 50)
        run = await lab.next_generation(run, f"count-{generation}")
    assert (await lab.end_of(run.uid)).exit_code == 9
    assert lab.out(run.uid).read_bytes() == b"".join(b"%d\r\n" % number for number in range(1, 1501))


async def test_input_of_frozen_processes_waits_for_them(lab: Lab) -> None:
    run = lab.job("cat", "cat", has_terminal=True)
    await lab.runtime.start_cold(run, None)
    client = await asyncio.to_thread(Client, lab, run)
    running = await lab.runtime.find_running(run)
    assert running is not None
    await asyncio.to_thread(freezer.freeze, running.containers[0].freezer)
    client.send(b"typed\r")
    assert select.select([client.connection], [], [], 0.3)[0] == []
    freezer.thaw(running.containers[0].freezer)
    assert await asyncio.to_thread(client.acknowledged) == len("typed\r")
    assert await seen(lab, run, "typed\r\ntyped\r\n") == "typed\r\ntyped\r\n"


async def test_unread_input_is_part_of_the_snapshot(lab: Lab) -> None:
    run = lab.shell("slow-0", "stty -echo; echo ready; read go </dev/null; sleep 1; read line; echo got $line",
                    has_terminal=True)  # fmt: skip
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "ready")
    client = await asyncio.to_thread(Client, lab, run)
    client.send(b"early\r")
    await asyncio.to_thread(client.acknowledged)
    run = await lab.next_generation(run, "slow-1")
    await lab.end_of(run.uid)
    assert lab.out(run.uid).read_bytes() == b"ready\r\ngot early\r\n"


async def test_a_second_client_is_refused_until_the_first_has_gone(lab: Lab) -> None:
    run = lab.job("cat", "cat", has_terminal=True)
    await lab.runtime.start_cold(run, None)
    first = await asyncio.to_thread(Client, lab, run)
    second = await asyncio.to_thread(Client, lab, run)
    assert (first.first, second.first) == (terminal_protocol.ACCEPTED, terminal_protocol.BUSY)
    assert second._receive() == b""
    first.connection.shutdown(socket.SHUT_RDWR)
    first.connection.close()
    third = await asyncio.to_thread(Client, lab, run)
    assert third.first == terminal_protocol.ACCEPTED


async def test_termination_reaches_the_program(lab: Lab) -> None:
    run = lab.shell("graceful", "trap 'echo leaving; exit 5' TERM; echo ready; while :; do sleep 0.1; done",
                    has_terminal=True)  # fmt: skip
    await lab.runtime.start_cold(run, None)
    await seen(lab, run, "ready")
    await lab.runtime.terminate(run.uid, 30)
    assert (await lab.end_of(run.uid)).exit_code == 5
    assert lab.out(run.uid).read_bytes().endswith(b"leaving\r\n")


async def test_terminal_belongs_to_the_jobs_user(lab: Lab) -> None:
    run = lab.shell("nobody", "stat -c '%U %a' $(tty); echo again >$(tty)", user="nobody", has_terminal=True)
    assert (await lab.run(run)).exit_code == 0
    assert lab.out(run.uid).read_bytes() == b"nobody 620\r\nagain\r\n"


async def test_engine_may_be_replaced_while_someone_is_attached(lab: Lab) -> None:
    run = lab.job("cat", "cat", has_terminal=True)
    await lab.runtime.start_cold(run, None)
    client = await asyncio.to_thread(Client, lab, run)
    await lab.restart()
    client.send(b"on\r")
    await seen(lab, run, "on\r\non\r\n")
