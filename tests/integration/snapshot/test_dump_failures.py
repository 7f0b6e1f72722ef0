"""A dump that fails, is cancelled or is killed leaves the job running as if nothing had happened, and says why."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot import freezer
from tests.processes import LEAVES_ITS_FIRST_THREAD

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

COUNTING = """
import time
ballast = bytearray(b"x" * (48 << 20))
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.002)
"""

USES_IO_URING = """
import ctypes, time
assert ctypes.CDLL(None).syscall(425, 4, (ctypes.c_char * 120)()) >= 0
while True:
    print("running")
    time.sleep(0.002)
"""

TALKS_TO_OUTSIDE = """
import socket, sys, time
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
while True:
    print("running")
    time.sleep(0.002)
"""


class FullDiskError(OSError):
    pass


class FailingSink:
    """Takes `until` bytes of all images together, then fails like a store that is full."""

    def __init__(self, until: int, at: str = "write") -> None:
        self.left = until
        self.at = at

    def open_stream(self, name: str) -> FailingSink:
        if self.at == "open" and name.startswith("pages"):
            raise FullDiskError("no space in the store")
        return self

    def write(self, data: memoryview) -> None:
        self.left -= len(data)
        if self.at == "write" and self.left < 0:
            raise FullDiskError("no space in the store")

    def close(self) -> None:
        if self.at == "close":
            raise FullDiskError("no space in the store")


class SlowSink:
    """Takes nothing until it is let go; tells when the first bytes of memory have come."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def open_stream(self, name: str) -> SlowSink:
        return self

    def write(self, data: memoryview) -> None:
        self.reached.set()
        self.go_on.wait(60)

    def close(self) -> None:
        pass


def assert_runs_on(lab: Laboratory) -> None:
    assert not freezer.is_frozen(lab.cgroup)
    lab.await_progress()
    lab.kill()


@pytest.mark.parametrize(("at", "until"), [("open", 0), ("write", 0), ("write", 20 << 20), ("close", 0)])
def test_a_sink_that_fails_stops_the_dump_and_is_its_cause(lab: Laboratory, at: str, until: int) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="no space in the store") as caught:
        lab.dump(FailingSink(until, at))
    assert isinstance(caught.value.__cause__, FullDiskError)
    assert_runs_on(lab)


def test_a_dump_can_be_cancelled_while_it_streams(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    sink = SlowSink()
    dump = lab.prepare_dump(sink)
    failures: list[DumpError] = []

    def run() -> None:
        try:
            dump.run()
        except DumpError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert sink.reached.wait(60)
    dump.cancel("the job was asked to end")
    sink.go_on.set()
    thread.join(30)
    assert [error.message for error in failures] == ["the job was asked to end"]
    assert_runs_on(lab)


def test_a_dump_that_takes_too_long_is_ended(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    sink = SlowSink()
    threading.Timer(1, sink.go_on.set).start()
    with pytest.raises(DumpError, match=r"did not end within 0.5 s"):
        lab.dump(sink, timeout_seconds=0.5)
    assert_runs_on(lab)


def test_a_criu_that_cannot_be_started_is_told(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    lab.toolchain = replace(lab.toolchain, criu=lab.folder / "nowhere")
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match=r"could not be started: .*nowhere"):
        lab.dump()
    assert_runs_on(lab)


def test_a_process_that_uses_io_uring_runs_on_and_says_why(lab: Laboratory) -> None:
    lab.python(USES_IO_URING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="io_uring") as caught:
        lab.dump()
    assert "switch it off" in caught.value.remedy
    assert any("Error" in line for line in caught.value.evidence)
    assert_runs_on(lab)


def test_a_connection_to_the_outside_is_named(lab: Laboratory) -> None:
    path = lab.folder / "outside.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        lab.python(TALKS_TO_OUTSIDE, str(path))
        connection, _ = server.accept()
        with connection:
            lab.await_lines(5)
            freezer.freeze(lab.cgroup)
            with pytest.raises(DumpError, match="unix socket") as caught:
                lab.dump()
    assert "both ends" in caught.value.remedy
    assert_runs_on(lab)


HAS_LOST_A_NAME = """
import os, sys, time
folder = sys.argv[1]
file = open(folder + "/first", "w+b")
file.write(b"kept")
file.flush()
os.link(folder + "/first", folder + "/second")
os.unlink(folder + "/first")
while True:
    print(os.pread(file.fileno(), 4, 0))
    time.sleep(0.002)
"""


def test_a_file_that_the_restore_would_not_find_is_refused(lab: Laboratory) -> None:
    lab.python(HAS_LOST_A_NAME, str(lab.folder))
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match=f"a name that was deleted, while it has another: {lab.folder}/first"):
        lab.dump()
    assert_runs_on(lab)
    assert not list(lab.folder.glob("link_remap*"))


def test_in_shared_memory_it_comes_back(lab: Laboratory) -> None:
    """Where named semaphores do it."""
    lab.python(HAS_LOST_A_NAME, "/dev/shm")
    lab.await_lines(5)
    lab.next_generation()
    lab.await_progress()


def test_a_process_that_has_ended_its_first_thread_is_not_dumped_and_runs_on(lab: Laboratory) -> None:
    lab.python(LEAVES_ITS_FIRST_THREAD)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="ended its first thread"):
        lab.dump()
    assert_runs_on(lab)
