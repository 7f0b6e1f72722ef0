"""Ends the remains of killed processes: the CRIU of a killed capture, the captures of a killed agent.

A CRIU whose stream is broken undoes its dump and exits; a capture whose agent has exited does the same, unless its dump
is complete and it is about to commit. A capture that outlives its agent continues: the next capture of the same
checkpoint waits for it, and finds its snapshot committed; SIGTERM stops it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import psutil

from cedana_sched.agent.capture_messages import criu_directory
from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.dump import LOG_NAME
from cedana_sched.snapshot.freezer import pids_in_cgroup
from cedana_sched.snapshot.killed_dump_cleanup import is_killed_criu_log, undo_killed_dump
from cedana_sched.snapshot.loopback_blocking import shared_namespaces, unblock_loopback_tcp

PATIENCE_SECONDS = 10.0
LOCK_NAME = "lock"
"""Below a capture's directory: locked by the capture while it works. Contains its PID, then the cgroups."""
FAILURES_KEPT = 20
"""Number of directories of failed captures, with CRIU's log, to keep for diagnosis."""
_MODULE = "cedana_sched.agent.capture"


def await_captures(work: Path) -> None:
    """Return when no capture of an earlier agent works below `work`; a capture that takes too long is killed.

    A capture that is killed after its dump leaves its workload frozen, as the next capture of the same checkpoint
    requires.
    """
    if work.exists():
        _wait_or_kill([process for path in work.glob(f"*/{LOCK_NAME}") if (process := _capture_holding_lock(path))])


def stop_capture(directory: Path, own: int | None = None) -> None:
    """Stop the capture that works in this directory, unless its PID is `own`; return when it has exited."""
    process = _capture_holding_lock(directory / LOCK_NAME)
    if process is None or process.pid == own:
        return
    with contextlib.suppress(psutil.NoSuchProcess):  # it exited this moment
        process.terminate()
    _wait_or_kill([process])


def capture_directories_of(work: Path, freezers: Iterable[Path]) -> list[Path]:
    """Return the directories of the captures below `work` that work on any of these cgroups."""
    wanted = set(map(str, freezers))
    found = [path for path in work.glob(f"*/{LOCK_NAME}") if _capture_holding_lock(path) is not None]
    return [path.parent for path in found if wanted & set(_read_lock_lines(path)[1:])]


def prune_failed_captures(work: Path) -> None:
    """Remove the oldest directories of failed captures."""
    ages: dict[Path, float] = {}
    for path in work.glob(f"*/{LOCK_NAME}"):
        if _capture_holding_lock(path) is None:
            with contextlib.suppress(FileNotFoundError):  # a capture that succeeds removes its own
                ages[path.parent] = path.stat().st_mtime
    for directory in sorted(ages, key=ages.__getitem__)[:-FAILURES_KEPT]:
        shutil.rmtree(directory, ignore_errors=True)


def _capture_holding_lock(lock: Path) -> psutil.Process | None:
    """Return the capture that has locked this file; None as well if it has exited, and has removed the file."""
    try:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                return None
            pid = file.readline().strip()
        process = psutil.Process(int(pid)) if pid else None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    return process if process is not None and _MODULE in _command_line(process) else None


def _read_lock_lines(lock: Path) -> list[str]:
    try:
        return lock.read_text().splitlines()
    except FileNotFoundError:
        return []  # a capture that succeeds removes its own


def lock_capture_directory(directory: Path, freezers: Iterable[Path] = ()) -> int:
    """Wait until no other capture works in `directory`, created if missing; lock it until the descriptor is closed.

    The file contains the PID of the capture and its cgroups.
    """
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a capture that succeeds removes its own
            descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_file_at_path(descriptor, directory / LOCK_NAME):
                break
            os.close(descriptor)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, "".join(f"{line}\n" for line in (os.getpid(), *freezers)).encode(), 0)
    return descriptor


def _is_file_at_path(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def await_orphans(toolchain: Toolchain, work: Path, workload: RunningWorkload) -> bool:
    """Return when no CRIU works for this workload's capture in `work` any more; the capture itself has ended.

    Returns:
        True if all ended by themselves, or there were none; False if one was killed, now or before as by the OOM
        killer, and its traces are removed.
    """
    directories = {str(criu_directory(work, tree.name)): tree for tree in workload.containers}
    orphans = {
        process: directory
        for process in psutil.process_iter()
        if _is_in_own_pid_namespace(process.pid)
        for directory in directories.keys() & set(_command_line(process))
    }
    killed = {orphans[process] for process in _wait_or_kill(orphans)}
    killed |= {directory for directory in directories if is_killed_criu_log(Path(directory, LOG_NAME))}
    for directory in killed:
        undo_killed_dump(toolchain, pids_in_cgroup(directories[directory].freezer), Path(directory, LOG_NAME))
    for namespace in shared_namespaces(tree.root_pid for tree in workload.containers):
        unblock_loopback_tcp(toolchain, namespace)
    return not killed


def _wait_or_kill(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait until all have exited; kill those that take too long, and return them."""
    _, alive = psutil.wait_procs(list(processes), timeout=PATIENCE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):  # it exited this moment
            process.kill()
    psutil.wait_procs(alive, timeout=PATIENCE_SECONDS)
    return alive


def _is_in_own_pid_namespace(pid: int) -> bool:
    """Return whether a process may be a CRIU of ours.

    Tenants' processes are not: one that waits for a file system of its own may keep its command line locked, and a read
    of it would not return.
    """
    try:
        return Path(f"/proc/{pid}/ns/pid").samefile("/proc/self/ns/pid")
    except OSError:  # it exited meanwhile
        return False


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it exited meanwhile
