"""Detection of threads that wait in vfork(2), which CRIU cannot seize: a dump would hang until its timeout.

Between vfork and the child's exec the parent sleeps in the kernel, unresponsive to signals and ptrace. A frozen cgroup
may contain such a pair: the child never reaches its exec, so the parent never stops for CRIU. Shells, posix_spawn(3)
and Python's subprocess all start programs this way; the wait lasts about a millisecond.

`freezer.freeze` thaws the processes for that millisecond and retries.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_WAITING_IN = ("kernel_clone", "wait_for_vfork_done")  # the wait is inlined on most kernels
_UNKNOWN = "0"
"""/proc/PID/wchan of a running thread. And, since Linux 6.12, of a sleeping one that is still on the run queue,
because it has exceeded its share of a busy processor (DELAY_DEQUEUE in kernel/sched/features.h)."""


def held_by_vfork(pids: Iterable[int]) -> list[int]:
    """Return those of the frozen processes with a thread that waits in vfork."""
    return [pid for pid in pids if any(_is_waiting_in_vfork(task) for task in _task_folders(pid))]


def _task_folders(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []  # ended


def _is_waiting_in_vfork(task: Path) -> bool:
    try:
        where = (task / "wchan").read_text()
        if where.strip() != _UNKNOWN:
            return where.startswith(_WAITING_IN)
        return any(f" {name}+" in line for line in (task / "stack").read_text().splitlines() for name in _WAITING_IN)
    except OSError:
        return False  # ended, or this kernel shows no stacks
