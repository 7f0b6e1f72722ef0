"""Stopped processes (SIGSTOP, Ctrl-Z) are dumped with their job and come back stopped; a traced one is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.preflight import find_obstacles
from tests.integration.snapshot.test_dump_failures import FailingSink, SlowSink

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

TREE = """
import os, signal, threading, time

ballast = bytearray(b"x" * (8 << 20))

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def count(name, began):
    number = 0
    while True:
        number += 1
        say(name, number)
        if number == 1:
            os.write(began, b".")
        time.sleep(0.01)

def child(*names):
    began, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        for name in names[1:]:
            threading.Thread(target=count, args=(name, begins), daemon=True).start()
        count(names[0], begins)
    for _ in names:
        os.read(began, 1)
    return pid

stopped = {"STOP": child("stop"), "TSTP": child("tstp"), "TTIN": child("t0", "t1", "t2", "t3")}
runs = child("runs")
for name, pid in stopped.items():
    os.kill(pid, getattr(signal, "SIG" + name))
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
say("ready")
while True:
    pid, status = os.waitpid(-1, os.WUNTRACED | os.WCONTINUED)
    say("waited", pid, "stopped" if os.WIFSTOPPED(status) else "continued" if os.WIFCONTINUED(status) else "ended")
"""

TRACER = """
import ctypes, signal, sys
PTRACE_SEIZE = 0x4206
assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0
print("traced", flush=True)
signal.pause()
"""


def tasks(process: psutil.Process) -> list[str]:
    """The state of each thread, as one letter."""
    folder = Path(f"/proc/{process.pid}/task")
    return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in folder.iterdir()]


def members(lab: Laboratory) -> list[psutil.Process]:
    """The tree's processes by the order of their birth: tini, the parent, STOP, TSTP, TTIN, runs."""
    return sorted(map(psutil.Process, freezer.pids_in_cgroup(lab.cgroup)), key=number_inside)


def number_inside(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("NSpid:")).split()[-1])


def printed(lab: Laboratory, name: str) -> list[int]:
    return [int(line.split()[1]) for line in lab.lines() if line.split()[0] == name]


def begin(lab: Laboratory) -> None:
    lab.python(TREE)
    lab.await_true(lambda: any(line.startswith("ready") for line in lab.lines()), "stopped children")


def assert_as_before(lab: Laboratory, before: dict[str, int]) -> None:
    """The stopped are stopped, and have done nothing; the others run."""
    so_far = len(printed(lab, "runs"))
    lab.await_true(lambda: len(printed(lab, "runs")) > so_far + 5, "progress of what was not stopped")
    _, _, *stopped, _ = members(lab)
    lab.await_true(lambda: all(set(tasks(one)) == {"T"} for one in stopped), "stops")
    assert {name: len(printed(lab, name)) for name in before} == before


def assert_told_of_stops(lab: Laboratory, times: int) -> None:
    """The parent, which waits for stops, has heard of so many after the first ones."""

    def told() -> int:
        return sum(line.startswith("waited ") and line.endswith(" stopped") for line in lab.lines())

    lab.await_true(lambda: told() >= times, "stops told to the parent")
    assert told() == times


def counts(lab: Laboratory) -> dict[str, int]:
    return {name: len(printed(lab, name)) for name in ("stop", "tstp", "t0", "t1", "t2", "t3")}


def assert_all_continue(lab: Laboratory) -> None:
    before = counts(lab)
    for process in members(lab)[2:-1]:
        process.send_signal(signal.SIGCONT)
    lab.await_true(lambda: all(len(printed(lab, name)) > before[name] + 5 for name in before), "all running")
    for name in before:
        numbers = printed(lab, name)
        assert numbers == list(range(1, len(numbers) + 1))


def test_stopped_processes_come_back_stopped(either_lab: Laboratory) -> None:
    lab = either_lab
    begin(lab)
    before = counts(lab)
    for generation in (1, 2, 3):
        lab.next_generation()
        assert_as_before(lab, before)
        assert_told_of_stops(lab, 3 * generation)
    assert_all_continue(lab)
    lab.next_generation()
    lab.await_progress()


def test_a_dump_that_lets_them_run_leaves_the_stopped_stopped(either_lab: Laboratory) -> None:
    lab = either_lab
    begin(lab)
    before = counts(lab)
    for _ in range(2):
        freezer.freeze(lab.cgroup)
        lab.dump()
        freezer.thaw(lab.cgroup)
        assert_as_before(lab, before)
    assert_all_continue(lab)


def test_a_dump_that_fails_leaves_the_stopped_stopped(either_lab: Laboratory) -> None:
    lab = either_lab
    begin(lab)
    before = counts(lab)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpError, match="no space in the store"):
        lab.dump(FailingSink(0))
    assert_as_before(lab, before)
    assert_all_continue(lab)


def test_a_dump_that_is_ended_leaves_the_stopped_stopped(either_lab: Laboratory) -> None:
    lab = either_lab
    begin(lab)
    before = counts(lab)
    freezer.freeze(lab.cgroup)
    sink = SlowSink()
    threading.Timer(1, sink.go_on.set).start()
    with pytest.raises(DumpError, match="did not end within"):
        lab.dump(sink, timeout_seconds=0.5)
    assert_as_before(lab, before)
    assert_all_continue(lab)


def test_a_debugger_of_one_thread_is_named_and_nothing_waits_for_it(lab: Laboratory) -> None:
    lab.python(TREE)
    lab.await_true(lambda: any(line.startswith("ready") for line in lab.lines()), "stopped children")
    threaded = members(lab)[4]
    thread = max(int(task.name) for task in Path(f"/proc/{threaded.pid}/task").iterdir())
    with subprocess.Popen([sys.executable, "-c", TRACER, str(thread)], stdout=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stdout is not None
            assert tracer.stdout.readline() == "traced\n"
            (obstacle,) = find_obstacles([process.pid for process in members(lab)])
            assert f"process {threaded.pid} " in str(obstacle)
            assert f"is traced by process {tracer.pid} (" in str(obstacle)
            freezer.freeze(lab.cgroup)
            with pytest.raises(DumpError, match=rf"process {threaded.pid} .* is traced by process {tracer.pid} "):
                lab.dump()
        finally:
            tracer.kill()
    assert not freezer.is_frozen(lab.cgroup)
    so_far = len(printed(lab, "runs"))
    lab.await_true(lambda: len(printed(lab, "runs")) > so_far + 5, "progress")
