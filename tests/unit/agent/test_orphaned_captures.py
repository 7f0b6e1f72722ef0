"""What killed agents leave behind: captures that still work are waited for, old failures are pruned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cedana_sched.agent import orphans
from cedana_sched.agent.orphans import FAILURES_KEPT, await_captures, prune
from tests.processes import is_alive

CAPTURE = """
import sys
from pathlib import Path
from cedana_sched.agent.orphans import lock
lock(Path(sys.argv[1]))
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
    os.close(orphans.lock(tmp_path / "c0"))
    await_captures(tmp_path)


def test_a_capture_that_goes_on_without_its_agent_is_killed_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "PATIENCE_SECONDS", 0.2)
    process = capture_below(tmp_path)
    await_captures(tmp_path)
    assert not is_alive(process.pid)
    end(process)


def test_the_oldest_failures_are_pruned_and_what_works_is_not(tmp_path: Path) -> None:
    process = capture_below(tmp_path)
    os.utime(tmp_path / "c1" / "lock", (1, 1))
    for number in range(FAILURES_KEPT + 3):
        os.close(orphans.lock(tmp_path / f"failed-{number:02}"))
        os.utime(tmp_path / f"failed-{number:02}" / "lock", (number + 10, number + 10))
    prune(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert end(process) == 0
    assert left == ["c1", *(f"failed-{number:02}" for number in range(3, FAILURES_KEPT + 3))]


def test_a_capture_that_removes_its_directory_while_it_is_looked_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "c1" / "lock"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([found]))  # listed, and gone at the next look
    await_captures(tmp_path)
    prune(tmp_path)


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
