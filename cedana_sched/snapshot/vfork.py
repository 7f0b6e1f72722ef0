"""Finds threads that wait in vfork(2), which CRIU cannot seize: a dump would hang until its time is over.

Between vfork and the child's exec the parent sleeps in the kernel without a look at signals or ptrace. A frozen
cgroup may hold such a pair: the child never gets to its exec, so the parent never stops for CRIU. Shells,
posix_spawn(3) and Python's subprocess all start programs this way; the moment lasts about a millisecond.

Called by `freezer.freeze`, which lets the processes run on for that millisecond and tries again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_WAITING_IN = ("kernel_clone", "wait_for_vfork_done")  # the wait is inlined on most kernels
_NOT_SAID = "0"
"""In /proc/PID/wchan, of a thread that runs. And, since Linux 6.12, of one that sleeps and is still on the run queue,
because it has had more than its share of a busy processor (DELAY_DEQUEUE in kernel/sched/features.h)."""


def held_by_vfork(pids: Iterable[int]) -> list[int]:
    """Of frozen processes those with a thread that waits in vfork."""
    return [pid for pid in pids if any(_waits(task) for task in _tasks(pid))]


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []  # it has ended


def _waits(task: Path) -> bool:
    try:
        where = (task / "wchan").read_text()
        if where.strip() != _NOT_SAID:
            return where.startswith(_WAITING_IN)
        return any(f" {name}+" in line for line in (task / "stack").read_text().splitlines() for name in _WAITING_IN)
    except OSError:
        return False  # it has ended, or this kernel shows no stacks
