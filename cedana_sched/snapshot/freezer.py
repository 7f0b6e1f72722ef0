"""Stops, continues and kills every process of a cgroup, without letting any of them notice.

Both generations of the kernel's interface are served, recognised by the files in the directory:

    v2 (`cgroup.freeze`)    the kernel tells when all are frozen, and when the last has gone: `cgroup.events`, poll(2)
    v1 (`freezer.state`)    nothing is told, so the state is read again every 2 ms within the time allowed. The v1
                            freezer also misses processes that are being forked: writing FROZEN once more
                            collects them (what CRIU and runc do too). It also stops the threads that an exec(2) is
                            waiting for to end, and then never freezes: letting all run for a moment helps (runc too)

A frozen process executes nothing, not even a signal handler; SIGKILL stays pending until the cgroup is thawed (v1)
and then takes effect before any instruction of the program. So `kill` of a frozen cgroup runs none of its code.

Called by the agent around `dump`, and by `restore` to remove what a failed one left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.connections import silence_connections
from cedana_sched.snapshot.vfork import held_by_vfork

_NAMED = 3  # control groups in a sentence
_REREAD_SECONDS = 0.002
_VFORK_SECONDS = 0.002
_REWRITE_EVERY = 16  # re-reads after which FROZEN is written again, about every 30 ms
_RELEASE_EVERY = 64  # re-reads after which all that is not frozen may run for a moment, about every 130 ms
_RELEASE_SECONDS = 0.01


class FreezerError(SnapshotError):
    """A cgroup did not reach the state that was asked for in time."""


@contextlib.contextmanager
def while_it_exists() -> Iterator[None]:
    """Leave what is done with a cgroup that somebody removes meanwhile: it has no members."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def is_frozen(cgroup: Path) -> bool:
    """True when every process in the cgroup is frozen (also when it has none, or is gone)."""
    frozen = True
    with while_it_exists():
        if _is_v2(cgroup):
            frozen = _events(cgroup).get("frozen") == "1"
        else:
            frozen = (cgroup / "freezer.state").read_text().strip() == "FROZEN"
    return frozen


def members(cgroup: Path) -> list[int]:
    """PIDs in the cgroup and in those below it."""
    found: list[int] = []
    for folder, _, _ in os.walk(cgroup):  # which passes over what is removed meanwhile
        with contextlib.suppress(OSError):  # it is removed meanwhile, or threaded: its domain lists its members
            found.extend(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return found


def freeze(cgroup: Path, timeout_seconds: float = 10.0) -> None:
    """As `freeze_together`, for one."""
    freeze_together((cgroup,), timeout_seconds)


def freeze_together(cgroups: Sequence[Path], timeout_seconds: float = 10.0) -> None:
    """Freeze cgroups and return when nothing in them runs any more, and nothing waits in vfork (see `vfork`).

    All are asked before any is waited for: those that talk to one another stop at nearly the same moment.

    Raises:
        FreezerError: one did not freeze in time; all are thawed again.
        FileNotFoundError: one is gone; the others are thawed again.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            late = _freeze_all(cgroups, deadline)
            held = [] if late else held_by_vfork([pid for cgroup in cgroups for pid in members(cgroup)])
        except BaseException:
            thaw_together(cgroups)
            raise
        if not late and not held:
            return
        thaw_together(cgroups)
        if late:
            remedy = "one of them is held in the kernel (state D: storage that does not answer?); try again later"
        elif time.monotonic() > deadline:
            remedy = f"process {held[0]} has started another by vfork, which does not go on to its program"
        else:
            time.sleep(_VFORK_SECONDS)  # nothing tells when the child has reached its program
            continue
        places = _named(late or cgroups)
        raise FreezerError(
            f"the processes in {places} did not freeze within {timeout_seconds:g} s; they run on",
            remedy=remedy,
            evidence=tuple(_describe(pid) for cgroup in late or cgroups for pid in members(cgroup)),
        )


def _named(cgroups: Sequence[Path]) -> str:
    """The first few; a pod may have as many containers as it likes."""
    more = len(cgroups) - _NAMED
    return ", ".join(map(str, cgroups[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def request_freeze(cgroup: Path) -> None:
    """Ask for the freeze without waiting: processes that are held elsewhere freeze when they are let go."""
    with while_it_exists():
        if _is_v2(cgroup):
            _write(cgroup / "cgroup.freeze", "1")
        else:
            _write(cgroup / "freezer.state", "FROZEN")


def thaw(cgroup: Path) -> None:
    """Let the cgroup run on. Does nothing if it runs, or is gone."""
    with while_it_exists():
        if _is_v2(cgroup):
            _write(cgroup / "cgroup.freeze", "0")
        else:
            _write(cgroup / "freezer.state", "THAWED")


def thaw_together(cgroups: Sequence[Path]) -> None:
    """Let all of them run on."""
    for cgroup in cgroups:
        thaw(cgroup)


def kill(cgroup: Path, timeout_seconds: float = 10.0) -> None:
    """SIGKILL every process of the cgroup, frozen or not, and return when all have gone.

    A frozen one executes no instruction in between, and its TCP connections vanish without a word to the peers: a
    restored incarnation takes them up again (see `connections`). Zombies whose parent has not waited count as gone.

    Raises:
        FreezerError: some process did not go in time.
    """
    deadline = time.monotonic() + timeout_seconds
    if members(cgroup) and is_frozen(cgroup):
        silence_connections(members(cgroup))
    while pids := members(cgroup):
        # Signals before the thaw; several rounds, because a process that runs may fork between reading and killing.
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        thaw(cgroup)
        if time.monotonic() > deadline:
            raise FreezerError(
                f"processes in {cgroup} are still there {timeout_seconds:g} s after SIGKILL",
                remedy="they are held in the kernel (state D); a reboot may be needed",
                evidence=tuple(_describe(pid) for pid in pids),
            )
        _await_exit(pids, deadline)


def _freeze_all(cgroups: Sequence[Path], deadline: float) -> list[Path]:
    """Freeze all; returns those that did not freeze in time."""
    for cgroup in cgroups:
        request_freeze(cgroup)
    return [
        cgroup
        for cgroup in cgroups
        if not (_freeze_v2(cgroup, deadline) if _is_v2(cgroup) else _freeze_v1(cgroup, deadline))
    ]


def _freeze_v2(cgroup: Path, deadline: float) -> bool:
    with (cgroup / "cgroup.events").open("rb", buffering=0) as events:
        waiter = select.poll()
        waiter.register(events, select.POLLPRI)
        _write(cgroup / "cgroup.freeze", "1")
        while not is_frozen(cgroup):
            if not waiter.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return is_frozen(cgroup)
            events.seek(0)
            events.read()  # until the file is read, poll reports the same event again
    return True


def _freeze_v1(cgroup: Path, deadline: float) -> bool:
    state = cgroup / "freezer.state"
    reads = 0
    while True:
        if reads and reads % _RELEASE_EVERY == 0:
            _write(state, "THAWED")
            time.sleep(_RELEASE_SECONDS)
        if reads % _REWRITE_EVERY == 0:
            _write(state, "FROZEN")
        if state.read_text().strip() == "FROZEN":
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_REREAD_SECONDS)  # the v1 freezer has no event to wait for
        reads += 1


def _await_exit(pids: list[int], deadline: float) -> None:
    """Wait until each has ended, told by its pidfd."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        waiter.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(descriptor)


def _is_v2(cgroup: Path) -> bool:
    return not (cgroup / "freezer.state").exists()


def _events(cgroup: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (cgroup / "cgroup.events").read_text().splitlines())


def _write(path: Path, value: str) -> None:
    path.write_text(value)


def _describe(pid: int) -> str:
    try:
        return " ".join(Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[0].split("(", 1)) + ")"
    except OSError:
        return f"{pid} (gone)"
