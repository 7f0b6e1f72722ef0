"""A capture whose agent is gone stops its dump, or finishes it where it outlives the agent; SIGTERM stops both."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cedana_sched.agent.captures import Captures
from tests.unit.agent.test_capture_messages import request

LISTENING = """
import os, sys, threading
from cedana_sched.agent.capture import _cancelled_from_outside
reports = os.dup(1)
class Dump:
    cancelled = threading.Event()
    def cancel(self, why):
        os.write(reports, why.encode() + b"\\n")
        self.cancelled.set()
dump = Dump()
with _cancelled_from_outside(dump, outlives_agent=sys.argv[1] == "outlives"):
    os.write(reports, b"dumps\\n")
    dump.cancelled.wait()
"""


def listening(kind: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", LISTENING, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"dumps\n"
    return process


def stop_word(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"stop\n")
    process.stdin.flush()


def end_of_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def says(process: subprocess.Popen[bytes]) -> bytes:
    said, errors = process.communicate(timeout=30)
    assert errors == b""
    return said


@pytest.mark.parametrize("kind", ["outlives", "ends"])
def test_a_word_stops_it(kind: str) -> None:
    process = listening(kind)
    stop_word(process)
    assert says(process) == b"the checkpoint was called off\n"


@pytest.mark.parametrize("kind", ["outlives", "ends"])
def test_sigterm_stops_it(kind: str) -> None:
    process = listening(kind)
    process.send_signal(signal.SIGTERM)
    assert says(process) == b"the checkpoint was called off\n"


def test_one_that_ends_with_its_agent_stops_then() -> None:
    process = listening("ends")
    end_of_stdin(process)
    assert says(process) == b"the agent ended during the dump\n"


def test_one_that_outlives_its_agent_goes_on_until_the_next_agent_stops_it() -> None:
    process = listening("outlives")
    end_of_stdin(process)
    assert process.stderr is not None
    assert process.stderr.read() == b"", "it has let go of what its agent reads"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert says(process) == b"the checkpoint was called off\n"


@pytest.mark.parametrize("can", [True, False])
async def test_only_who_is_sheltered_is_told_to_outlive(can: bool, tmp_path: Path) -> None:
    moved: list[int] = []

    async def shelter(pid: int) -> bool:
        moved.append(pid)
        return can

    async with Captures(request().toolchain, tmp_path, shelter) as captures:
        assert set(moved) == {process.pid for process in captures._spares}
        assert captures._sheltered == (set(moved) if can else set())
