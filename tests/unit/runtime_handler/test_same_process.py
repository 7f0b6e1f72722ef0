"""A process that was written down is found as long as any of its threads runs, and no other one in its place."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.same_process import is_running, open_running
from tests.processes import without_first_thread
from tests.unit.cluster.node.bundle_tree import start_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_one_that_runs_is_the_same_by_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid)
    descriptor = open_running(sleeper.pid, start)
    assert descriptor is not None
    os.close(descriptor)
    assert not is_running(sleeper.pid, start - 1)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(sleeper.pid, start)
    sleeper.wait()
    assert not is_running(sleeper.pid, start)


def test_one_whose_first_thread_alone_has_ended_runs() -> None:
    with without_first_thread() as process:
        start = start_of(process.pid)
        assert is_running(process.pid, start)
        assert not is_running(process.pid, start - 1)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid, start)


def test_a_number_that_a_thread_has_now_is_no_processs() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert not is_running(thread.native_id, start_of(thread.native_id))
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("code", ["EINVAL", "ENOENT", "ESRCH"])
def test_all_that_a_kernel_says_of_no_process_count_as_none(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def refuse(_: int) -> int:
        raise OSError(getattr(errno, code), "no process")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not is_running(os.getpid(), start_of(os.getpid()))


def test_nothing_stays_open(sleeper: subprocess.Popen[bytes]) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for older in (0, 1):
        is_running(sleeper.pid, start_of(sleeper.pid) - older)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
