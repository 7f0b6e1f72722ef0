"""The terminals that processes have open, of which one that is open as /dev/tty alone cannot be saved.

The images have a terminal's name only if a process has it open by that (see `snapshot.current_terminals`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

CURRENT_TERMINAL = "/dev/tty"
NAMELESS = "no program of the workload has its terminal open by name"
REMEDY = "let the program keep a standard stream at its terminal, or close /dev/tty before the snapshot"
_SLAVE_MAJOR = 136
"""Of pseudo-terminals (linux/major.h)."""
_NAMED = re.compile(r"/dev/(?:pts/(\d{1,7})|console)")


class OpenTerminals:
    """The terminals of one look at processes."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        self._current: dict[int, int] = {}
        """Controlling terminals, by the PIDs of the processes that have /dev/tty open."""

    def add_descriptor(self, process: Path, target: str) -> None:
        """Add a descriptor of a process, by its folder in /proc and the descriptor's link there.

        Raises:
            FileNotFoundError, ProcessLookupError: the process has ended.
        """
        if target == CURRENT_TERMINAL:
            if (pid := int(process.name)) not in self._current:
                self._current[pid] = _controlling_terminal(process)
        elif named := _NAMED.fullmatch(target):  # in a container, the console is the first terminal
            self._named.add(os.makedev(_SLAVE_MAJOR, int(named.group(1) or 0)))

    def nameless_holders(self) -> Iterator[int]:
        """Yield the PIDs of processes that have /dev/tty open, and of whose terminal that is the only name.

        A process without a controlling terminal has the file from another, and counts as if all were well.
        """
        return (pid for pid, terminal in self._current.items() if terminal and terminal not in self._named)


def _controlling_terminal(process: Path) -> int:
    """Return the device of a process's controlling terminal (proc_pid_stat(5)); 0 if it has none."""
    _, _, fields = (process / "stat").read_bytes().rpartition(b")")
    return int(fields.split()[4])
