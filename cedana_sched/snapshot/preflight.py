"""What in a live tree CRIU cannot dump, said before anything is frozen.

Only what can be seen cheaply in /proc: descriptors of kinds that have no state CRIU could read, devices, and a
debugger. Not finding anything is no promise; the dump itself has the last word. Called by the agent before `freeze`,
and by `doctor` for a running job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why a tree cannot be dumped."""

    pid: int
    command: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) {self.problem}: {self.remedy}"


_DESCRIPTORS = (
    (r"anon_inode:\[?io_uring", "uses io_uring", "switch it off in the program (for libuv: UV_USE_IO_URING=0)"),
    (r"anon_inode:\[?perf_event", "counts hardware events", "end the profiler"),
    (r"anon_inode:kvm", "runs a virtual machine", "snapshot the machine from within its hypervisor"),
    (r"anon_inode:\[?(?:userfaultfd|seccomp)", "handles another process's faults", "run the program without it"),
    (r"/dev/(?:nvidia|kfd|dri/)", "holds a GPU", "GPU state cannot be saved by this version"),
    (r"/dev/(?:fuse|infiniband/)", "drives a device", "run the program without it"),
)


def find_obstacles(pids: Iterable[int]) -> list[Obstacle]:
    """Look at the processes; those that end meanwhile are passed over."""
    return _find(pids, _look_at)


def find_tracers(pids: Iterable[int]) -> list[Obstacle]:
    """Only the debuggers: one may have come since `find_obstacles` looked."""
    return _find(pids, _tracers)


def _find(pids: Iterable[int], look: Callable[[int], Iterator[Obstacle]]) -> list[Obstacle]:
    found: dict[tuple[int, str], Obstacle] = {}
    for pid in pids:
        try:
            for obstacle in look(pid):
                found.setdefault((obstacle.pid, obstacle.problem), obstacle)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return list(found.values())


def _tracers(pid: int) -> Iterator[Obstacle]:
    """Any thread may be traced alone."""
    folder = Path(f"/proc/{pid}")
    for task in list((folder / "task").iterdir()):
        tracer = re.search(r"^TracerPid:\s*([1-9]\d*)", (task / "status").read_text(errors="replace"), re.MULTILINE)
        if tracer:
            by = f"process {tracer.group(1)} ({_command(Path('/proc', tracer.group(1)))})"
            yield Obstacle(pid, _command(folder), f"is traced by {by}", "end the debugger (gdb, strace)")


def _command(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


def _look_at(pid: int) -> Iterator[Obstacle]:
    folder = Path(f"/proc/{pid}")
    command = (folder / "comm").read_text(errors="replace").strip()
    yield from _tracers(pid)
    if path := _leased_mapping(pid):
        yield Obstacle(pid, command, f"has a lease on a file that it has mapped ({path})", "give one of them up")
    for entry in list((folder / "fd").iterdir()):
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        for pattern, problem, remedy in _DESCRIPTORS:
            if re.match(pattern, target):
                yield Obstacle(pid, command, problem, remedy)


def _leased_mapping(pid: int) -> str | None:
    """A file of which the process has a lease and a mapping: CRIU opens it once more for the latter, and breaks it."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    leases = {words[5] for words in lines if words[1] == "LEASE" and words[4] == str(pid)}
    if not leases:
        return None
    try:
        mappings = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended
    for line in mappings.splitlines():
        _, _, _, device, inode, *path = line.split(maxsplit=5)
        if f"{device}:{inode}" in leases:
            return path[0] if path else inode
    return None
