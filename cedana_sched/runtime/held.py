"""Restored processes, held right before their first instruction: what must be done or seen before they run.

    pre-resume      CRIU holds all threads right before their first instruction, and runs our script: it puts CRIU
                    into another control group, and freezes that of the processes
    CRIU ends       it lets the processes go, into the frozen group
    `held`          is the caller's time; its end thaws the group, unless it is kept frozen, and an exception kills all
                    that is in it

Used by the handler for containers, and by `snapshot.restore`; standard library only.
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


class HoldError(Exception):
    """The restored processes could not be held back, or must not run; nothing of them runs."""


class Held:
    """Those of one control group, which is frozen until somebody thaws it."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.processes = _members(group)
        """As this process sees them."""
        self.is_kept = False

    def by_number(self) -> dict[int, int]:
        """The same by the numbers by which they see themselves."""
        return {number_inside(process): process for process in self.processes}

    def thaw(self) -> None:
        """Let them run, if nothing else stops them."""
        _set_frozen(self._group, is_frozen=False)

    def freeze(self) -> None:
        """Hold them again, before their next instruction: who stops them otherwise may let them go then."""
        _set_frozen(self._group, is_frozen=True)

    def keep_frozen(self) -> None:
        """Leave them frozen at the end; `frozen_group` says which group is to be thawed."""
        self.is_kept = True


def frozen_group(work: str) -> str:
    """The control group of the restored processes of the restore that had this folder.

    Raises:
        OSError: they were not held back.
    """
    with open(f"{work}/{_NOTE}", encoding="utf-8") as file:
        return file.read().rstrip("\n")


def write_script(work: str, group: str | None = None) -> str:
    """Write the action script for a CRIU of this process's descendants; returns its path.

    Args:
        work: a folder of this restore's own, where CRIU runs.
        group: the control group of the restored processes; None: the one that their first process is in.
    """
    is_v1 = _is_v1(group or f"{_ROOT}/freezer")
    root = _root_of(group) if group else f"{_ROOT}/freezer" if is_v1 else _ROOT
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
def held(work: str) -> Iterator[Held]:
    """Those of the restore that had this folder, once CRIU has ended well.

    Raises:
        HoldError: they were not held back; they have been killed.
    """
    try:
        group = frozen_group(work)
    except FileNotFoundError as error:
        raise HoldError("the restored processes could not be held back before their first instruction") from error
    try:
        _wait_frozen(group)
        processes = Held(group)
        yield processes
        if not processes.is_kept:
            processes.thaw()
    except BaseException:
        _kill_group(group)
        raise


def kill(processes: Iterable[int]) -> None:
    """Kill those that are still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def number_inside(process: int) -> int:
    """By which a process sees itself; 0 of one that has ended."""
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
    """Only the root of the v1 hierarchy has no `freezer.state`."""
    return os.path.exists(f"{group}/freezer.state") or (
        os.path.exists(f"{group}/cgroup.procs") and not os.path.exists(f"{group}/cgroup.controllers")
    )


def _root_of(group: str) -> str:
    while os.path.exists(f"{os.path.dirname(group)}/cgroup.procs"):
        group = os.path.dirname(group)
    return group


def _members(group: str) -> list[int]:
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def _wait_frozen(group: str) -> None:
    deadline = time.monotonic() + _FREEZE_SECONDS
    while not _is_frozen(group):
        if time.monotonic() > deadline:
            raise HoldError("the restored processes could not be held back: their control group does not freeze")
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
    """A frozen process dies when it is thawed, without another instruction."""
    with suppress(OSError):  # the group is gone
        kill(_members(group))
        _set_frozen(group, is_frozen=False)
