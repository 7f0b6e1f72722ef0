"""Connections to a process that it has not accepted yet.

No process owns them, so CRIU cannot save them, and refuses to dump unless an option skips them. A connection from
another machine is lost anyway if the processes get a new address, as in a new pod: its client retries, and a pod that
is probed every second is rarely without one. A connection from a process of the same network must not be lost, because
that process considers it established; the dump is retried after a moment.
"""

from __future__ import annotations

from pathlib import Path

from cedana_sched.snapshot.tcp_table import CLOSE_WAIT, ESTABLISHED, PROC, SYN_RECEIVED, connections

_WAITING = frozenset({ESTABLISHED, SYN_RECEIVED, CLOSE_WAIT})


def can_skip_pending_connections(pid: int, proc: Path = PROC) -> bool:
    """Return whether all pending connections in a process's network, not the host's, are from outside."""
    try:
        if (proc / str(pid) / "ns/net").stat().st_ino == (proc / "self/ns/net").stat().st_ino:
            return False
        waiting = [one for one in connections(pid, proc) if one.state in _WAITING and not one.has_owner]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(waiting) and not any(one.is_within_network for one in waiting)
