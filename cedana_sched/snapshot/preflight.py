"""Obstacles to a dump of a live tree, found before the freeze.

Only checks that are cheap in /proc: descriptors of kinds whose state CRIU cannot read, devices, and debuggers. No
finding is no guarantee; only the dump itself decides.

Reads only the workload's own files: no table that other tenants of the node can lengthen. And the check is bounded in
time, whatever the workload has: it may have been designed to take long.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.criu_failures import IO_URING_REMEDY
from cedana_sched.snapshot.open_terminals import CURRENT_TERMINAL, NAMELESS, REMEDY, OpenTerminals

LOOK_SECONDS = 5.0
LOOK_PROCESSES = 4096
_FDINFO_BYTES = 1 << 16
"""Bytes read per descriptor: leases follow the locks that its process has by it."""


class CutShortError(SnapshotError):
    """The bounds were reached; no obstacle was found so far."""


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why a tree cannot be dumped."""

    pid: int
    command: str
    problem: str
    remedy: str
    reason: str = "NotCheckpointable"
    """The kind of problem, in CamelCase as in the conditions of Kubernetes."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) {self.problem}: {self.remedy}"


_TRACER = re.compile(rb"^TracerPid:\s*([1-9]\d*)", re.MULTILINE)
_DESCRIPTORS = (
    (r"anon_inode:\[?io_uring", "UsesIoUring", "uses io_uring", IO_URING_REMEDY),
    (r"anon_inode:\[?perf_event", "CountsHardwareEvents", "counts hardware events", "end the profiler"),
    (
        r"anon_inode:kvm",
        "RunsVirtualMachine",
        "runs a virtual machine",
        "snapshot the machine from within its hypervisor",
    ),
    (
        r"anon_inode:\[?(?:userfaultfd|seccomp)",
        "HandlesFaults",
        "handles another process's faults",
        "run the program without it",
    ),
    (r"/dev/(?:nvidia|kfd|dri/)", "HoldsGPU", "holds a GPU", "GPU state cannot be saved by this version"),
    (r"/dev/(?:fuse|infiniband/)", "DrivesDevice", "drives a device", "run the program without it"),
)


class _CheckBudget:
    """The bounds of one check: its duration and its number of processes."""

    def __init__(self, seconds: float, processes: int) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._processes = processes
        self._seen = 0

    def count_process(self) -> None:
        """Count one process.

        Raises:
            CutShortError: the number exceeds the bound.
        """
        self._seen += 1
        if self._seen > self._processes:
            raise CutShortError(f"there are more than {self._processes} processes to look at")
        self.require_time_left()

    def require_time_left(self) -> None:
        """Check the time before each read.

        Raises:
            CutShortError: the time is over.
        """
        if time.monotonic() > self._until:
            raise CutShortError(f"the look would take more than {self._seconds:g} s")


def find_obstacles(
    pids: Iterable[int], seconds: float = LOOK_SECONDS, processes: int = LOOK_PROCESSES
) -> list[Obstacle]:
    """Check the processes, within the bounds; those that end meanwhile are skipped.

    Raises:
        CutShortError: nothing was found, and not everything was checked.
    """
    terminals = OpenTerminals()
    found = _find(pids, partial(_obstacles_of, terminals), _CheckBudget(seconds, processes))
    return found or [_terminal_obstacle(pid) for pid in terminals.nameless_holders()]


def find_tracers(pids: Iterable[int]) -> list[Obstacle]:
    """Find only debuggers: one may have attached since `find_obstacles`."""
    return _find(pids, _tracer_obstacles_of, _CheckBudget(float("inf"), sys.maxsize))


def _find(
    pids: Iterable[int], look_at: Callable[[int, _CheckBudget], Iterator[Obstacle]], look: _CheckBudget
) -> list[Obstacle]:
    found: dict[tuple[int, str], Obstacle] = {}
    try:
        for pid in pids:
            look.count_process()
            with suppress(FileNotFoundError, ProcessLookupError):
                for obstacle in look_at(pid, look):
                    found.setdefault((obstacle.pid, obstacle.problem), obstacle)
    except CutShortError:
        if not found:
            raise
    return list(found.values())


def _tracer_obstacles_of(pid: int, look: _CheckBudget) -> Iterator[Obstacle]:
    """Yield the debuggers of a process, of which any thread may be traced alone."""
    folder = Path(f"/proc/{pid}")
    for task in _folder_entries(folder / "task", look):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended
            tracer = _TRACER.search((task / "status").read_bytes())
            if tracer:
                number = tracer.group(1).decode()
                by = f"process {number} ({_command_name_of(Path('/proc', number))})"
                command = _command_name_of(folder)
                yield Obstacle(pid, command, f"is traced by {by}", "end the debugger (gdb, strace)", "IsTraced")


def _folder_entries(folder: Path, look: _CheckBudget) -> Iterator[Path]:
    """Yield the entries of a folder of /proc one by one: there may be a million."""
    with os.scandir(folder) as entries:
        for entry in entries:
            look.require_time_left()
            yield Path(entry.path)


def _command_name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


def _terminal_obstacle(pid: int) -> Obstacle:
    problem = f"has {CURRENT_TERMINAL} open, and {NAMELESS}"
    return Obstacle(pid, _command_name_of(Path(f"/proc/{pid}")), problem, REMEDY, "HoldsNamelessTerminal")


def _obstacles_of(terminals: OpenTerminals, pid: int, look: _CheckBudget) -> Iterator[Obstacle]:
    folder = Path(f"/proc/{pid}")
    command = _command_name_of(folder)
    yield from _tracer_obstacles_of(pid, look)
    leases: set[bytes] = set()
    for path in _folder_entries(folder / "fd", look):
        try:
            target = str(path.readlink())
            if target.startswith("/"):  # a file, of whatever kind
                leases |= _leased_files(folder / "fdinfo" / path.name)
                terminals.add_descriptor(folder, target)
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed meanwhile
        for pattern, reason, problem, remedy in _DESCRIPTORS:
            if re.match(pattern, target):
                yield Obstacle(pid, command, problem, remedy, reason)
    if leases and (mapped := _find_mapped_file(folder, leases, look)):
        problem = f"has a lease on a file that it has mapped ({mapped})"
        yield Obstacle(pid, command, problem, "give one of them up", "MapsLeasedFile")


def _leased_files(fdinfo: Path) -> set[bytes]:
    """Return devices and inodes of the files with a lease by this descriptor (proc_pid_fdinfo(5))."""
    with fdinfo.open("rb") as file:
        lines = (line.split() for line in file.read(_FDINFO_BYTES).split(b"\n") if line.startswith(b"lock:"))
        return {words[6] for words in lines if len(words) > 6 and words[2] == b"LEASE"}


def _find_mapped_file(folder: Path, files: set[bytes], look: _CheckBudget) -> str | None:
    """Return one of these files that is mapped: CRIU opens it again for the mapping, and breaks the lease.

    Its name may be any bytes; the kernel escapes only newlines.
    """
    with suppress(FileNotFoundError, ProcessLookupError), (folder / "maps").open("rb") as mappings:
        for line in mappings:
            look.require_time_left()
            _, _, _, device, inode, *path = line.removesuffix(b"\n").split(maxsplit=5)
            if b"%b:%b" % (device, inode) in files:
                return (path[0] if path else inode).decode(errors="replace")
    return None
