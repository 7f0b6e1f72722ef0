"""Freezing, thawing and killing whole cgroups, on both kinds."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cedana_sched.snapshot import freezer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

FAMILY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.fork()
        break
while True:
    print(os.getpid())
    time.sleep(0.002)
"""

FORKING = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("forking")
while True:
    if (child := os.fork()):
        os.waitpid(child, 0)
    else:
        os._exit(0)
"""

EXECUTING = """
import os, sys, threading, time
for _ in range(8):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("again")
os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
"""


def test_a_family_stops_and_goes_on(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(FAMILY)
    lab.await_lines(50)
    assert len(freezer.pids_in_cgroup(lab.cgroup)) == 8
    freezer.freeze(lab.cgroup)
    assert freezer.is_frozen(lab.cgroup)
    frozen_at = lab.output.stat().st_size
    freezer.freeze(lab.cgroup)  # once more changes nothing
    freezer.thaw(lab.cgroup)
    lab.await_progress(50)
    assert lab.output.stat().st_size > frozen_at
    freezer.thaw(lab.cgroup)


def test_one_that_forks_all_the_time_is_frozen_and_killed(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(FORKING)
    lab.await_lines(1)
    freezer.freeze(lab.cgroup)
    assert freezer.is_frozen(lab.cgroup)
    lab.kill()
    assert freezer.pids_in_cgroup(lab.cgroup) == []


def test_one_that_runs_is_killed_without_a_freeze(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(FORKING)
    lab.await_lines(1)
    lab.kill()
    assert freezer.pids_in_cgroup(lab.cgroup) == []


def test_members_of_cgroups_below_are_killed_as_well(either_lab: Laboratory) -> None:
    lab = either_lab
    below = lab.cgroup / "below"
    below.mkdir()
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeper:
        (below / "cgroup.procs").write_text(str(sleeper.pid))
        freezer.freeze(lab.cgroup)
        assert freezer.pids_in_cgroup(lab.cgroup) == [sleeper.pid]
        freezer.kill(lab.cgroup)
        assert sleeper.wait() == -9
    below.rmdir()


def test_an_empty_cgroup_and_one_that_is_gone(either_lab: Laboratory) -> None:
    lab = either_lab
    freezer.freeze(lab.cgroup)
    freezer.kill(lab.cgroup)
    freezer.thaw(lab.cgroup)
    gone = lab.cgroup / "gone"
    freezer.thaw(gone)
    freezer.kill(gone)


def test_cgroups_that_are_removed_meanwhile_have_no_members(either_lab: Laboratory) -> None:
    below = either_lab.cgroup / "below"
    tree = [below, *(below / str(number) for number in range(10))]

    def remove() -> None:
        for folder in reversed(tree):
            folder.rmdir()

    with ThreadPoolExecutor() as pool:
        for _ in range(200):
            for folder in tree:
                folder.mkdir()
            removal = pool.submit(remove)
            while not removal.done():
                assert freezer.pids_in_cgroup(below) == []
                freezer.kill(below)
                freezer.thaw(below)
                freezer.is_frozen(below)
            removal.result()


def test_a_freeze_that_does_not_succeed_is_taken_back(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.python(FAMILY)
    lab.await_lines(5)
    really = freezer.request_freeze

    def never_done(cgroup: Path, _deadline: float) -> bool:
        really(cgroup)
        return False

    monkeypatch.setattr(freezer, "_freeze_v1", never_done)
    monkeypatch.setattr(freezer, "_freeze_v2", never_done)
    with pytest.raises(freezer.FreezerError, match="run on") as caught:
        freezer.freeze(lab.cgroup)
    assert any("python3" in line for line in caught.value.evidence)
    lab.await_progress()


def test_one_with_threads_that_becomes_another_program_all_the_time_is_frozen(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(EXECUTING)
    for _ in range(20):
        lab.await_progress(1)
        freezer.freeze(lab.cgroup)
        freezer.thaw(lab.cgroup)
