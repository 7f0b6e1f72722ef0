"""Connections that were made to a process and that it has not accepted yet.

They are in no process's hands, so CRIU cannot save them, and refuses to dump unless it is told to leave them out. One
that comes from another machine is lost anyway where the processes get a new address, as in a new pod: whoever made it
tries again, and a pod that is probed every second is hardly ever without one. One that a process of the same network
made must not be lost, because that process believes in it; the dump is tried again in a moment.
"""

from __future__ import annotations

from pathlib import Path

from cedana_sched.snapshot.tcp_table import CLOSE_WAIT, ESTABLISHED, PROC, SYN_RECEIVED, connections

_WAITING = frozenset({ESTABLISHED, SYN_RECEIVED, CLOSE_WAIT})


def can_be_left_out(pid: int, proc: Path = PROC) -> bool:
    """Whether all that wait in the network of a process come from elsewhere, and that network is not the machine's."""
    try:
        if (proc / str(pid) / "ns/net").stat().st_ino == (proc / "self/ns/net").stat().st_ino:
            return False
        waiting = [one for one in connections(pid, proc) if one.state in _WAITING and not one.has_owner]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(waiting) and not any(one.is_within for one in waiting)
