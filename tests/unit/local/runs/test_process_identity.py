"""A PID is only as good as the start time that goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from cedana_sched.local.runs.process_identity import ProcessId
from tests.processes import without_first_thread


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_running_process_is_alive_and_can_be_opened(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.from_pid(sleeper.pid)
    descriptor = process.open_pidfd()
    assert process.alive()
    assert descriptor is not None
    os.close(descriptor)


def test_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.from_pid(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not process.alive()
    assert process.open_pidfd() is None


def test_process_whose_first_thread_alone_has_ended_is_alive_and_gets_signals() -> None:
    with without_first_thread() as process:
        known = ProcessId.from_pid(process.pid)
        assert known.alive()
        assert known.send(signal.SIGKILL)
        process.wait()
        assert not known.alive()


def test_signal_reaches_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert ProcessId.from_pid(sleeper.pid).send(signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


def test_successor_with_the_same_pid_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    predecessor = ProcessId.from_pid(sleeper.pid)._replace(start=1)
    assert not predecessor.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_process_that_is_gone_is_not_there() -> None:
    process = subprocess.Popen(["true"])
    known = ProcessId.from_pid(process.pid)
    process.wait()
    assert known.open_pidfd() is None
    assert not known.send(signal.SIGKILL)
    with pytest.raises(ProcessLookupError, match=str(process.pid)):
        ProcessId.from_pid(process.pid)


def test_name_with_blanks_and_brackets_does_not_confuse() -> None:
    script = "open('/proc/self/comm', 'w').write(') S 1 (x'); print('', flush=True); input()"
    process = subprocess.Popen(["python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        assert ProcessId.from_pid(process.pid).alive()
    finally:
        process.communicate(b"\n")
