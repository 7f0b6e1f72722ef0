"""What is left of a program that was ended because it took too long: no process, and no mount in its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.kernel import detach_mounts_below
from cedana_sched.runtime_handler.runc_restore import TOO_LONG

_RUN = """
import sys
from cedana_sched.runtime_handler.runc_restore import run_program

def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"

status = run_program(sys.executable, sys.argv[1:], seconds=8)
with open(sys.argv[-1]) as family:
    print(status, *(state(pid) for pid in family.read().split()))
"""
_FAMILY = """
import os, sys, time
for _ in range(3):
    os.fork()
with open(sys.argv[1], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
memory = bytearray(os.urandom(1 << 20) * 50)  # it takes its time to die
time.sleep(600)
"""


def test_all_descendants_have_ended_when_it_returns(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", _RUN, "-c", _FAMILY, str(pids)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    status, *states = done.stdout.split()
    assert int(status) == TOO_LONG
    assert len(states) == 8
    assert set(states) <= {"X", "Z"}


def test_mounts_are_taken_away_though_somebody_looks_into_them(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    work, other = tmp_path / "work", tmp_path / "work-of-another"
    outer, inner = work / "outer", work / "outer/inner"
    for folder in (outer, inner, other):
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "layers", folder], check=True)
    try:
        with (inner / "open").open("w"):
            detach_mounts_below(str(work))
        assert not os.path.ismount(outer)
        assert not list(outer.iterdir())
        assert os.path.ismount(other)
    finally:
        subprocess.run(["umount", other], check=True)
