"""Control groups on cgroup v1 and v2: limits, usage, kill and removal.

A `Cgroup` has a directory in each required hierarchy; its creator chooses where. Standard library only: the supervisor
of each run imports this module.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot import freezer

UNIFIED = "unified"
FREEZER = "freezer"

_V1_CONTROLLERS = (FREEZER, "memory", "cpu", "cpuacct", "pids")
_V2_CONTROLLERS = ("cpu", "memory", "pids")
_PERIOD_MICROSECONDS = 100_000
_TRIES = 20
_LEAVING_SECONDS = 1.0
_YOUNG_SECONDS = 60.0
_REMOVED = (errno.ENOENT, errno.ENODEV)  # before a file of the group is open, and after
_NO_SWAP = "it may swap"  # a machine without swap accounting lacks the file, and usually swap


class CgroupError(CedanaSchedError):
    """A control group cannot be created, or its processes do not end."""


class Limits(NamedTuple):
    """Resource limits of the processes; None is no limit. CPUs may be fractions."""

    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None


class Usage(NamedTuple):
    cpu_seconds: float
    memory_bytes: int
    peak_memory_bytes: int


class Cgroup:
    """The groups of some processes.

    Args:
        directories: by controller (v1), or of `unified` (v2).
        controllers: required controllers of v2, as far as available.
    """

    def __init__(self, directories: Mapping[str, str], controllers: tuple[str, ...] = _V2_CONTROLLERS) -> None:
        self.directories = {name: Path(path) for name, path in directories.items()}
        self.version = 2 if UNIFIED in directories else 1
        self._controllers = controllers if self.version == 2 else ()

    def as_json(self) -> dict[str, str]:
        return {name: str(path) for name, path in self.directories.items()}

    @property
    def freezer_directory(self) -> Path:
        """The directory that freezes all of them: v1 freezer, or v2."""
        return self.directories[UNIFIED if self.version == 2 else FREEZER]

    @property
    def unique_directories(self) -> tuple[Path, ...]:
        """Each directory once, the freezer first; hosts may mount several v1 controllers together."""
        names = sorted(self.directories, key=lambda name: name != FREEZER)
        return tuple(dict.fromkeys(self.directories[name] for name in names))

    def create(self) -> None:
        """Create the groups, with their controllers delegated to them. Idempotent.

        Raises:
            CgroupError: the kernel refused; names the directory and the reason.
        """
        for path in self.unique_directories:
            _create_cgroup(path, self._controllers)

    def add_process(self, pid: int) -> None:
        """Move a process into the groups."""
        for path in self.unique_directories:
            _write(path / "cgroup.procs", str(pid))

    def create_and_join(self, pid: int) -> None:
        """Create the groups and move a process into them. Another engine may remove them while they are empty.

        Raises:
            CgroupError: the kernel refused; names the directory and the reason.
            OSError: the process cannot be moved.
        """
        for _ in range(_TRIES):
            self.create()
            try:
                self.add_process(pid)
            except OSError as error:
                if error.errno in _REMOVED:
                    continue
                raise
            return
        raise CgroupError(f"{self.unique_directories[0]} vanishes again and again", remedy="run one engine only")

    def apply_limits(self, limits: Limits) -> list[str]:
        """Apply the limits; return descriptions of those that this machine does not support. Memory excludes swap."""
        settings = (_v2_settings if self.version == 2 else _v1_settings)(limits)
        problems = [self._write_control_file(*setting) for setting in settings]
        return [problem for problem in problems if problem]

    def resource_usage(self) -> Usage:
        """CPU seconds and memory bytes of all its processes, 0 where the controller is missing."""
        if self.version == 2:
            cpu = _read_key_values(self.freezer_directory / "cpu.stat").get("usage_usec", 0) / 1e6
            return Usage(
                cpu,
                _read_integer(self.freezer_directory / "memory.current"),
                _read_integer(self.freezer_directory / "memory.peak"),
            )
        nanoseconds = self._read_number("cpuacct", "cpuacct.usage")
        now, peak = (self._read_number("memory", f"memory.{n}usage_in_bytes") for n in ("", "max_"))
        return Usage(nanoseconds / 1e9, now, peak)

    def oom_kills(self) -> int:
        """How many of its processes the kernel killed at the memory limit."""
        if self.version == 2:
            return _read_key_values(self.freezer_directory / "memory.events").get("oom_kill", 0)
        memory = self.directories.get("memory")
        return _read_key_values(memory / "memory.oom_control").get("oom_kill", 0) if memory else 0

    def kill(self) -> None:
        """Kill every process, also frozen ones, and wait for their end. A frozen one executes no further instruction.

        Raises:
            FreezerError: some processes do not end within 10 s (they wait for a device, or CRIU holds them).
        """
        freezer.kill(self.freezer_directory)

    def remove(self) -> None:
        """Remove the groups; they must be empty. Idempotent.

        Raises:
            CgroupError: there are processes in one.
        """
        for path in self.unique_directories:
            _remove(path)

    def _write_control_file(self, name: str, value: str, what: str) -> str | None:
        controller = UNIFIED if self.version == 2 else name.split(".", maxsplit=1)[0]
        directory = self.directories.get(controller)
        if directory is None or not (directory / name).exists():
            return f"{what}: this machine's control groups have no {name}" if what != _NO_SWAP else None
        try:
            _write(directory / name, value)
        except OSError as error:
            return f"{what}: {name} cannot be set to {value}: {error.strerror}"
        return None

    def _read_number(self, controller: str, name: str) -> int:
        directory = self.directories.get(controller)
        return _read_integer(directory / name) if directory else 0


def find_abandoned_groups(parent: Path) -> list[Path]:
    """Return the groups below another one that are older than a minute.

    A younger one may be waiting for its first process, of this program or another one on this machine.
    """
    try:
        groups = [path for path in parent.iterdir() if path.is_dir()]
        return [path for path in groups if time.time() - path.stat().st_mtime > _YOUNG_SECONDS]
    except FileNotFoundError:
        return []  # another engine is cleaning up as well


def find_roots(mountinfo: Iterable[str]) -> dict[str, Path]:
    """Return the root of each v1 controller's hierarchy from /proc/self/mountinfo, or `{"unified": root}` for v2.

    A hybrid machine (v1 controllers, and a v2 hierarchy that has none) counts as v1.

    Raises:
        CgroupError: neither a v1 freezer nor v2 is mounted.
    """
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo:
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split()[4])
        if kind == "cgroup2":
            v2 = point
        elif kind == "cgroup":
            v1 |= {name: point for name in options.split(",") if name in _V1_CONTROLLERS}
    if FREEZER in v1:
        return v1
    if v2 is not None:
        return {UNIFIED: v2}
    raise CgroupError(
        "no control group hierarchy that can freeze processes is mounted",
        remedy="mount cgroup2 on /sys/fs/cgroup, or the v1 freezer on /sys/fs/cgroup/freezer",
    )


def _v1_settings(limits: Limits) -> Iterable[tuple[str, str, str]]:
    if limits.cpus is not None:
        yield "cpu.shares", str(max(2, round(limits.cpus * 1024))), "no CPU weight"
        yield "cpu.cfs_quota_us", str(_cpu_quota_microseconds(limits.cpus)), "no CPU limit"
    if limits.memory_bytes is not None:
        yield "memory.limit_in_bytes", str(limits.memory_bytes), "no memory limit"
        yield "memory.memsw.limit_in_bytes", str(limits.memory_bytes), _NO_SWAP
    if limits.processes is not None:
        yield "pids.max", str(limits.processes), "no limit of processes"


def _v2_settings(limits: Limits) -> Iterable[tuple[str, str, str]]:
    if limits.cpus is not None:
        weight = min(10_000, max(1, round(limits.cpus * 100)))  # 100 is the kernel's default, as 1024 is in v1
        yield "cpu.weight", str(weight), "no CPU weight"
        yield "cpu.max", f"{_cpu_quota_microseconds(limits.cpus)} {_PERIOD_MICROSECONDS}", "no CPU limit"
    if limits.memory_bytes is not None:
        yield "memory.max", str(limits.memory_bytes), "no memory limit"
        yield "memory.swap.max", "0", _NO_SWAP
    if limits.processes is not None:
        yield "pids.max", str(limits.processes), "no limit of processes"


def _remove(path: Path) -> None:
    """Remove a group, with retries for a second: a reaped process may still be leaving its group."""
    deadline = time.monotonic() + _LEAVING_SECONDS
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.EBUSY and not _pids_in_cgroup(path) and time.monotonic() < deadline:
                time.sleep(_LEAVING_SECONDS / 200)
                continue
            remedy = f"end its processes: {_format_pids(_pids_in_cgroup(path))}"
            raise CgroupError(f"{path} cannot be removed: {error.strerror}", remedy=remedy) from error
        return


def _cpu_quota_microseconds(cpus: float) -> int:
    return max(1000, round(cpus * _PERIOD_MICROSECONDS))  # the kernel refuses less than a millisecond


def _create_cgroup(path: Path, controllers: tuple[str, ...]) -> None:
    """Create `parent/path`; another engine may be removing the empty parent at the same time."""
    for _ in range(_TRIES):
        try:
            path.parent.mkdir(exist_ok=True)
            if controllers:
                _delegate_controllers(path.parent.parent, controllers)
                _delegate_controllers(path.parent, controllers)
            path.mkdir(exist_ok=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CgroupError(
                f"{path} cannot be made: {error.strerror}",
                remedy="run the engine as root, where control groups are mounted writable",
            ) from error
        return
    raise CgroupError(f"{path} cannot be made: its parent vanishes again and again", remedy="run one engine only")


def _delegate_controllers(directory: Path, controllers: tuple[str, ...]) -> None:
    """Delegate these controllers to the children of a v2 group, as far as the group itself has them.

    A container's v2 root has processes, and a group with processes cannot delegate: they move to a leaf first.
    """
    available = set((directory / "cgroup.controllers").read_text().split())
    enabled = set((directory / "cgroup.subtree_control").read_text().split())
    wanted = " ".join(f"+{name}" for name in controllers if name in available - enabled)
    if not wanted:
        return
    try:
        _write(directory / "cgroup.subtree_control", wanted)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        leaf = directory / "init"
        leaf.mkdir(exist_ok=True)
        for pid in _pids_in_cgroup(directory):
            _move_process(pid, leaf)
        _write(directory / "cgroup.subtree_control", wanted)


def _move_process(pid: int, group: Path) -> None:
    try:
        _write(group / "cgroup.procs", str(pid))
    except ProcessLookupError:
        return  # ended meanwhile


def _pids_in_cgroup(path: Path) -> list[int]:
    found: list[int] = []
    with freezer.suppress_missing_cgroup():
        found += map(int, (path / "cgroup.procs").read_text().split())
    return found


def _format_pids(pids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(pids)[:10])) or "none"


def _write(path: Path, value: str) -> None:
    with path.open("wb", buffering=0) as file:  # a single write call, whose error is the kernel's result
        file.write(value.encode())


def _read_integer(path: Path) -> int:
    text = _read_text(path)
    return int(text) if text else 0


def _read_key_values(path: Path) -> dict[str, int]:
    pairs: list[Any] = [line.split() for line in _read_text(path).splitlines()]
    return {name: int(value) for name, value in pairs}


def _read_text(path: Path) -> str:
    found: list[str] = []
    with freezer.suppress_missing_cgroup():
        found.append(path.read_text())
    return "".join(found)
