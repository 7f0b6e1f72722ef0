"""A job's terminal: a pseudo-terminal both of whose ends are open in the job's own process tree.

CRIU restores a pseudo-terminal completely (settings, size, session, foreground group, data on the way in both
directions) if both ends are in the tree that it dumps. So PID 1 of the job (tini) keeps the master open, as descriptor
`MASTER_DESCRIPTOR`, and everyone outside works with a duplicate of it.

    tini                    PID 1, in a session without a controlling terminal
    sh                      `COMMAND_PREFIX`: waits for the command, and ends as it ended
    the job's command       leads the session of the terminal, and does not have the master

The command itself must lead the session, because CRIU gives the controlling terminal to the leader alone: processes
that ran under it have none after a restore (they cannot open /dev/tty, and move no group to the foreground), and what
it starts then has one again.

CRIU has a way for a master outside of the tree, too (`--external tty[…]`): it loses what is on the way, gives the
processes a terminal that has no name in their /dev/pts, and all their open files of it one common offset and flags.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from contextlib import suppress
from pathlib import Path

from cedana_sched.snapshot import syscalls

MASTER_DESCRIPTOR = 9
"""A single digit: shells cannot name others in `9>&-`."""
SETSID = "/usr/bin/setsid"
"""Of util-linux."""
COMMAND_PREFIX = (
    "/bin/sh",
    "-c",
    f'trap : TERM HUP INT; (exec {SETSID} -c "$@" {MASTER_DESCRIPTOR}>&-); exit $?',
    "sh",
)
"""Prefix of a job's command, which makes it the leader of the terminal's session."""
_ROWS, _COLUMNS = 24, 80
"""Size until someone attaches, as of most terminals since the VT100."""


def open_job_terminal(uid: int) -> None:
    """Open a terminal of this process's /dev/pts as its standard streams, and its master.

    For the process that then becomes PID 1 of a job of user `uid`.
    """
    master, slave = os.openpty()
    os.set_blocking(master, False)  # a property of the open file, which CRIU and the keeper share
    os.fchown(slave, uid, -1)
    set_window_size(slave, _ROWS, _COLUMNS)
    os.dup2(master, MASTER_DESCRIPTOR)
    for stream in (0, 1, 2):
        os.dup2(slave, stream)
    for descriptor in {master, slave} - {0, 1, 2, MASTER_DESCRIPTOR}:
        os.close(descriptor)


def duplicate_master(init: int) -> int:
    """Return a duplicate of the master that PID 1 of a job keeps; `init` is its PID in this process's namespace.

    Raises:
        OSError: the process has ended, or has no terminal.
    """
    process = os.pidfd_open(init)
    try:
        return syscalls.pidfd_getfd(process, MASTER_DESCRIPTOR)
    finally:
        os.close(process)


def terminate_session(init: int) -> None:
    """Send SIGTERM to the group of the job's command, as tini does in jobs without a terminal."""
    for shell in _children_of(init):
        for leader in _children_of(shell):
            with suppress(ProcessLookupError):  # ended meanwhile
                os.killpg(leader, signal.SIGTERM)


def _children_of(process: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):  # ended
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def set_window_size(terminal: int, rows: int, columns: int) -> None:
    """Set the size of either end; the kernel sends SIGWINCH to the foreground group if it changes."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
