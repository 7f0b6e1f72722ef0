"""A process that has files open, in a pretended control group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cedana_sched.runtime_handler.held_processes import HeldProcesses
from cedana_sched.runtime_handler.outside_files import outside_files_of

HOLD = """
import os, sys
os.chdir(sys.argv[1])
kept = [open("log", "ab"), open("data", "wb"), open("data", "rb")]
print(flush=True)
sys.stdin.read()
"""


class HeldWorkload:
    """The process, with its files as they are at the dump."""

    def __init__(self, folder: Path, process: int) -> None:
        self.folder, self.process = folder, process
        self.group = folder / "group"
        self.group.mkdir()
        self.list_members(process)
        self.log, self.data = folder / "log", folder / "data"
        self.log.write_bytes(b"x" * 10)
        self.held = HeldProcesses(str(self.group))
        self.files = outside_files_of([process], lambda path: path in (str(self.log), str(self.data)))
        assert len(self.files.files) == 2

    def list_members(self, *processes: int) -> None:
        (self.group / "cgroup.procs").write_text("".join(f"{one}\n" for one in processes))

    def grow(self) -> None:
        for path in (self.log, self.data):
            os.truncate(path, 50)

    def sizes(self) -> tuple[int, int]:
        return self.log.stat().st_size, self.data.stat().st_size


@contextmanager
def held_workload(folder: Path) -> Iterator[HeldWorkload]:
    """Yield one with these files of the folder: `log` of 10 bytes, append-only, and `data`, empty, open twice."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield HeldWorkload(folder, process.pid)
        process.communicate()
