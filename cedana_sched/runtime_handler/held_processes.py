"""Restored processes, held right before their first instruction, for steps that must precede it.

    pre-resume      CRIU holds all threads right before their first instruction, and runs our script: it moves CRIU
                    into another control group, and freezes that of the processes
    CRIU ends       it detaches from the processes, in the frozen group
    `held`          the caller's steps; at the end the group is thawed, unless it is kept frozen, and an exception
                    kills all of it

Standard library only.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_ROOT = "/sys/fs/cgroup"
_FREEZE_SECONDS = 10.0
_LOOK_SECONDS = 0.002
_NOTE = "held"
_SCRIPT = """\
#!/bin/sh
# Run by CRIU: keeps restored processes from their first instruction, until they may run.
[ "$CRTOOLS_SCRIPT_ACTION" = pre-resume ] || exit 0
outside={outside}
group={group}
lose() {{ kill -9 "$CRTOOLS_INIT_PID"; exit 1; }}
if [ -z "$group" ]; then
    while IFS=: read -r number controllers path; do
        case "$number:,$controllers," in {line}) group={root}$path ;; esac
    done <"/proc/$CRTOOLS_INIT_PID/cgroup"
fi
[ -n "$group" ] && [ "$group" != "$outside" ] || lose
for process in $PPID $$; do echo "$process" >"$outside/cgroup.procs" || lose; done
if [ -e "$group/freezer.state" ]; then
    echo FROZEN >"$group/freezer.state" || lose
else
    echo 1 >"$group/cgroup.freeze" || lose
fi
echo "$group" >{held}
"""


class RestoredProcessesError(Exception):
    """The restored processes could not be held, or must not run; none of them runs."""


class HeldProcesses:
    """Processes of one control group, which is frozen until it is thawed."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.processes = _pids_in_cgroup(group)
        """As this process sees them."""
        self.is_kept = False

    def current_processes(self) -> list[int]:
        """Return the processes that are in the control group now."""
        return _pids_in_cgroup(self._group)

    def by_namespace_pid(self) -> dict[int, int]:
        """Return the processes by their own PIDs in their namespace."""
        return {pid_in_namespace(process): process for process in self.processes}

    def thaw(self) -> None:
        """Thaw them; they run unless stopped otherwise."""
        _set_frozen(self._group, is_frozen=False)

    def freeze(self) -> None:
        """Freeze them again, before their next instruction; a tracer may detach then."""
        _set_frozen(self._group, is_frozen=True)

    def keep_frozen(self) -> None:
        """Keep them frozen at the end; `frozen_group` returns the group to thaw."""
        self.is_kept = True


def frozen_group(work: str) -> str:
    """Return the control group of the processes restored with this work directory.

    Raises:
        OSError: the processes were not held.
    """
    with open(f"{work}/{_NOTE}", encoding="utf-8") as file:
        return file.read().rstrip("\n")


def write_action_script(work: str, group: str | None = None) -> str:
    """Write the action script for a CRIU among this process's descendants; return its path.

    Args:
        work: a directory for this restore only, CRIU's working directory.
        group: the control group of the restored processes; None: that of their first process.
    """
    is_v1 = _is_v1(group or f"{_ROOT}/freezer")
    root = _topmost_cgroup_of(group) if group else f"{_ROOT}/freezer" if is_v1 else _ROOT
    script, note = f"{work}/hold", f"{work}/{_NOTE}"
    with suppress(FileNotFoundError):
        os.unlink(note)
    text = _SCRIPT.format(
        outside=shlex.quote(root + _own_group(is_v1=is_v1)),
        group=shlex.quote(group or ""),
        line="*,freezer,*" if is_v1 else "0:*",
        root=shlex.quote(root),
        held=shlex.quote(note),
    )
    with open(script, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
        file.write(text)
    return script


@contextmanager
def restored_processes(work: str) -> Iterator[HeldProcesses]:
    """Yield the processes restored with this work directory, once CRIU has succeeded.

    Raises:
        RestoredProcessesError: the processes were not held; they have been killed.
    """
    try:
        group = frozen_group(work)
    except FileNotFoundError as error:
        raise RestoredProcessesError(
            "the restored processes could not be held back before their first instruction"
        ) from error
    try:
        _wait_frozen(group)
        processes = HeldProcesses(group)
        yield processes
        if not processes.is_kept:
            processes.thaw()
    except BaseException:
        _kill_group(group)
        raise


def kill(processes: Iterable[int]) -> None:
    """Kill those that still exist."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def pid_in_namespace(process: int) -> int:
    """Return a process's PID in its own namespace; 0 if it has ended."""
    with (
        suppress(FileNotFoundError, ProcessLookupError),
        open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as status,
    ):
        for line in status:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _own_group(*, is_v1: bool) -> str:
    with open("/proc/self/cgroup", encoding="utf-8") as table:
        for line in table:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            if "freezer" in controllers.split(",") if is_v1 else number == "0":
                return path.rstrip("/")
    return ""


def _is_v1(group: str) -> bool:
    """Return whether a group is v1; only the root of the v1 hierarchy has no `freezer.state`."""
    return os.path.exists(f"{group}/freezer.state") or (
        os.path.exists(f"{group}/cgroup.procs") and not os.path.exists(f"{group}/cgroup.controllers")
    )


def _topmost_cgroup_of(group: str) -> str:
    while os.path.exists(f"{os.path.dirname(group)}/cgroup.procs"):
        group = os.path.dirname(group)
    return group


def _pids_in_cgroup(group: str) -> list[int]:
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def _wait_frozen(group: str) -> None:
    deadline = time.monotonic() + _FREEZE_SECONDS
    while not _is_frozen(group):
        if time.monotonic() > deadline:
            raise RestoredProcessesError(
                "the restored processes could not be held back: their control group does not freeze"
            )
        time.sleep(_LOOK_SECONDS)  # the v1 freezer has no event to wait for


def _is_frozen(group: str) -> bool:
    if os.path.exists(f"{group}/freezer.state"):
        with open(f"{group}/freezer.state", encoding="ascii") as file:
            return file.read().strip() == "FROZEN"
    with open(f"{group}/cgroup.events", encoding="ascii") as file:
        return "frozen 1" in file.read().splitlines()


def _set_frozen(group: str, *, is_frozen: bool) -> None:
    if os.path.exists(f"{group}/freezer.state"):
        name, value = "freezer.state", "FROZEN" if is_frozen else "THAWED"
    else:
        name, value = "cgroup.freeze", "1" if is_frozen else "0"
    with open(f"{group}/{name}", "w", encoding="ascii") as file:
        file.write(value)


def _kill_group(group: str) -> None:
    """Kill a frozen group; its processes die at the thaw, without another instruction."""
    with suppress(OSError):  # the group is gone
        kill(_pids_in_cgroup(group))
        _set_frozen(group, is_frozen=False)
