"""CRIU is killed in the middle of a dump, at the moments that can be hit exactly; the job runs on."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.tcp_repair import enter_repair_mode, leave_repair_mode
from tests.integration.snapshot.struck_criu import StrikingSink, kill, stop

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

COUNTING = """
import threading, time
ballast = bytearray(b"x" * (48 << 20))
for _ in range(4):
    threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.002)
"""

CONVERSING = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
calling = socket.create_connection(server.getsockname())
answering, _ = server.accept()
ballast = bytearray(b"x" * (48 << 20))
if os.fork() == 0:
    while message := answering.recv(100):
        answering.sendall(message)
number = 0
while True:
    number += 1
    calling.sendall(str(number).encode())
    print(calling.recv(100).decode())
    time.sleep(0.002)
"""


def killed_at(lab: Laboratory, moment: str) -> None:
    """Let CRIU be killed by one of its own hooks when it comes to `moment` (criu(8), --action-script)."""
    hook = lab.folder / "hook"
    tables = f"{lab.toolchain.nft} list tables >{lab.folder}/tables"
    hook.write_text(f'#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != {moment} ] || {{ {tables}; kill -9 $PPID; }}\n')
    hook.chmod(0o755)
    criu = lab.folder / "criu"
    criu.write_text(f'#!/bin/sh\nexec {lab.toolchain.criu} "$@" --action-script {hook}\n')
    criu.chmod(0o755)
    lab.toolchain = replace(lab.toolchain, criu=criu)


def network_locks(lab: Laboratory) -> str:
    return subprocess.run([lab.toolchain.nft, "list", "tables"], capture_output=True, text=True, check=True).stdout


def assert_counts_on(lab: Laboratory) -> None:
    lab.await_progress()
    lab.kill()
    assert lab.lines() == [str(number) for number in range(1, len(lab.lines()) + 1)]


@pytest.mark.parametrize("moment", ["pre-dump", "post-dump"])
def test_the_job_survives_a_kill(either_lab: Laboratory, moment: str) -> None:
    lab = either_lab
    lab.python(COUNTING)
    lab.await_lines(5)
    killed_at(lab, moment)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="killed by SIGKILL"):
        lab.dump()
    assert_counts_on(lab)


def test_the_network_lock_of_a_killed_criu_is_removed(lab: Laboratory) -> None:
    lab.python(CONVERSING)
    lab.await_lines(5)
    killed_at(lab, "post-dump")
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="killed by SIGKILL"):
        lab.dump()
    run = re.findall(r"CRIU run id = ([0-9a-f-]{20})", (lab.folder / "dump-1" / "dump.log").read_text())[0]
    assert f"CRIU-{run}" in (lab.folder / "tables").read_text()
    assert f"CRIU-{run}" not in network_locks(lab)


def test_the_job_survives_a_kill_while_its_memory_is_streamed(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="killed by SIGKILL"):
        lab.dump(StrikingSink(lab, kill))
    assert_counts_on(lab)


def test_a_criu_that_hangs_is_killed_and_connections_go_on(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped CRIU cannot give up by itself; the job must not run before its sockets have left the repair mode."""
    monkeypatch.setattr("cedana_sched.snapshot.dump._ORDERLY_SECONDS", 0.3)
    lab.python(CONVERSING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="did not end within 10 s"):
        lab.dump(StrikingSink(lab, stop), timeout_seconds=10)
    assert_counts_on(lab)


def test_connections_in_repair_mode_are_woken(lab: Laboratory) -> None:
    lab.python(CONVERSING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    assert enter_repair_mode(freezer.pids_in_cgroup(lab.cgroup)) == 2
    assert leave_repair_mode(freezer.pids_in_cgroup(lab.cgroup)) == 2
    assert leave_repair_mode(freezer.pids_in_cgroup(lab.cgroup)) == 0
    freezer.thaw(lab.cgroup)
    assert_counts_on(lab)
