"""What killed agents leave behind: captures that still work are waited for, old failures are pruned."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cedana_sched.agent import orphan_processes
from cedana_sched.agent.capture_messages import criu_directory
from cedana_sched.agent.orphan_processes import (
    FAILURES_KEPT,
    await_captures,
    capture_directories_of,
    prune_failed_captures,
    stop_capture,
)
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from tests.processes import is_alive
from tests.unit.agent.test_capture_messages import request

CAPTURE = """
import sys
from pathlib import Path
from cedana_sched.agent.orphan_processes import lock_capture_directory
lock_capture_directory(Path(sys.argv[1]), [Path("/sys/fs/cgroup/freezer/p1")])
print("locked", flush=True)
sys.stdin.read()
"""


def capture_below(work: Path) -> subprocess.Popen[bytes]:
    """A process that has locked a capture's directory, and ends when its stdin does."""
    command = [sys.executable, "-c", CAPTURE, str(work / "c1"), "cedana_sched.agent.capture"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    return process


def end(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    return process.wait()


def test_nothing_is_waited_for_where_nothing_works(tmp_path: Path) -> None:
    await_captures(tmp_path / "never made")
    os.close(orphan_processes.lock_capture_directory(tmp_path / "c0"))
    await_captures(tmp_path)


def test_a_capture_that_goes_on_without_its_agent_is_killed_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphan_processes, "PATIENCE_SECONDS", 0.2)
    process = capture_below(tmp_path)
    await_captures(tmp_path)
    assert not is_alive(process.pid)
    end(process)


def test_the_oldest_failures_are_pruned_and_what_works_is_not(tmp_path: Path) -> None:
    process = capture_below(tmp_path)
    os.utime(tmp_path / "c1" / "lock", (1, 1))
    for number in range(FAILURES_KEPT + 3):
        os.close(orphan_processes.lock_capture_directory(tmp_path / f"failed-{number:02}"))
        os.utime(tmp_path / f"failed-{number:02}" / "lock", (number + 10, number + 10))
    prune_failed_captures(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert end(process) == 0
    assert left == ["c1", *(f"failed-{number:02}" for number in range(3, FAILURES_KEPT + 3))]


def test_a_capture_that_removes_its_directory_while_it_is_looked_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "c1" / "lock"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([found]))  # listed, and gone at the next look
    await_captures(tmp_path)
    prune_failed_captures(tmp_path)


def test_a_capture_that_ends_as_it_is_killed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = capture_below(tmp_path)

    def ends_too_late(captures: list[psutil.Process], timeout: float) -> tuple[list[psutil.Process], object]:
        if process.poll() is None:
            end(process)  # after the last look, before the kill
            return [], captures
        return captures, []

    monkeypatch.setattr(psutil, "wait_procs", ends_too_late)
    await_captures(tmp_path)
    assert process.returncode == 0


def test_who_works_on_a_workload_is_found_and_stops_when_told(tmp_path: Path) -> None:
    process = capture_below(tmp_path)
    os.close(orphan_processes.lock_capture_directory(tmp_path / "ended", [Path("/sys/fs/cgroup/freezer/p1")]))
    assert capture_directories_of(tmp_path, [Path("/sys/fs/cgroup/freezer/p2")]) == []
    assert capture_directories_of(tmp_path, [Path("/sys/fs/cgroup/freezer/p1")]) == [tmp_path / "c1"]
    stop_capture(tmp_path / "c1", own=process.pid)
    assert process.poll() is None
    for name in ("c1", "ended", "never made"):
        stop_capture(tmp_path / name)
    assert not is_alive(process.pid)
    end(process)


def test_who_waits_for_a_capture_that_removes_its_directory_gets_one_of_its_own(tmp_path: Path) -> None:
    first = orphan_processes.lock_capture_directory(tmp_path / "c1")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(orphan_processes.lock_capture_directory, tmp_path / "c1")
        while str(os.fstat(first).st_ino) not in _waited_for():
            time.sleep(0.01)  # /proc/locks has no event
        shutil.rmtree(tmp_path / "c1")
        os.close(first)
        second = waiting.result(timeout=10)
    assert os.path.samestat(os.fstat(second), (tmp_path / "c1" / "lock").stat())
    os.close(second)


def _waited_for() -> set[str]:
    """Inodes whose locks somebody waits for."""
    lines = Path("/proc/locks").read_text().splitlines()
    return {line.split()[6].rsplit(":", 1)[-1] for line in lines if "->" in line}


@pytest.mark.parametrize(
    ("log", "is_undone"),
    [
        ("(00.1) Dumping task 7\n", True),
        ("(00.2) Error (criu/cr-dump.c:2111): Dumping FAILED.\n", False),
        (None, False),
    ],
)
def test_what_a_criu_leaves_that_was_killed_before_its_capture_ended_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str | None, is_undone: bool
) -> None:
    """The out-of-memory killer may have taken both."""
    undone: list[Path] = []
    monkeypatch.setattr(orphan_processes, "undo_killed_dump", lambda toolchain, pids, log: undone.append(log))
    directory = criu_directory(tmp_path, "main")
    directory.mkdir(parents=True)
    if log is not None:
        (directory / "dump.log").write_text("(00.0) x\n" * 10_000 + log)
    workload = RunningWorkload((RunningContainer(os.getpid(), tmp_path / "gone", "main"),))
    assert orphan_processes.await_orphans(request().toolchain, tmp_path, workload) is not is_undone
    assert undone == ([directory / "dump.log"] if is_undone else [])
