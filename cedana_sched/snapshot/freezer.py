"""Freezes, thaws and kills all processes of a cgroup, invisibly to them.

Supports both generations of the kernel's interface, detected by the files in the directory:

    v2 (`cgroup.freeze`)    the kernel reports when all are frozen, and when the last has gone: `cgroup.events`, poll(2)
    v1 (`freezer.state`)    without notification, so the state is polled every 2 ms until the timeout. The v1
                            freezer also misses processes that are being forked: writing FROZEN again
                            catches them (as CRIU and runc do). It also stops the threads that an exec(2) is
                            waiting for to end, and then never freezes: thawing all for a moment helps (as in runc)

A frozen process executes nothing, not even a signal handler; SIGKILL stays pending until the cgroup is thawed (v1) and
then takes effect before any instruction of the program. So `kill` of a frozen cgroup executes none of its code.


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
from cedana_sched.snapshot.tcp_repair import enter_repair_mode
from cedana_sched.snapshot.vfork import held_by_vfork

_NAMED = 3  # control groups in a sentence
_REREAD_SECONDS = 0.002
_VFORK_SECONDS = 0.002
_REWRITE_EVERY = 16  # polls after which FROZEN is written again, about every 30 ms
_RELEASE_EVERY = 64  # polls after which all that is not frozen may run for a moment, about every 130 ms
_RELEASE_SECONDS = 0.01


class FreezerError(SnapshotError):
    """A cgroup did not reach the requested state in time."""


@contextlib.contextmanager
def suppress_missing_cgroup() -> Iterator[None]:
    """Suppress errors of a cgroup that is removed meanwhile: it has no members."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def is_frozen(cgroup: Path) -> bool:
    """Return whether every process in the cgroup is frozen (also if it has none, or is gone)."""
    frozen = True
    with suppress_missing_cgroup():
        if _is_v2(cgroup):
            frozen = _read_cgroup_events(cgroup).get("frozen") == "1"
        else:
            frozen = (cgroup / "freezer.state").read_text().strip() == "FROZEN"
    return frozen


def pids_in_cgroup(cgroup: Path) -> list[int]:
    """Return the PIDs in the cgroup and below."""
    found: list[int] = []
    for folder, _, _ in os.walk(cgroup):  # skips what is removed meanwhile
        with contextlib.suppress(OSError):  # removed meanwhile, or threaded: its domain lists its members
            found.extend(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return found


def freeze(cgroup: Path, timeout_seconds: float = 10.0) -> None:
    """Freeze one cgroup; see `freeze_together`."""
    freeze_together((cgroup,), timeout_seconds)


def freeze_together(cgroups: Sequence[Path], timeout_seconds: float = 10.0) -> None:
    """Freeze cgroups; on return none of their processes runs or waits in vfork (see `vfork`).

    All freezes are requested before any is awaited, so that communicating processes stop at nearly the same moment.

    Raises:
        FreezerError: a cgroup did not freeze in time; all are thawed again.
        FileNotFoundError: a cgroup is gone; the others are thawed again.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            late = _freeze_all(cgroups, deadline)
            held = [] if late else held_by_vfork([pid for cgroup in cgroups for pid in pids_in_cgroup(cgroup)])
        except BaseException:
            thaw_together(cgroups)
            raise
        if not late and not held:
            return
        thaw_together(cgroups)
        if late:
            remedy = "one of them is held in the kernel (state D: storage that does not answer?); try again later"
        elif time.monotonic() > deadline:
            remedy = f"process {held[0]} has started another by vfork, which does not start its program"
        else:
            time.sleep(_VFORK_SECONDS)  # no notification exists of the child's exec
            continue
        places = _format_cgroup_names(late or cgroups)
        raise FreezerError(
            f"the processes in {places} did not freeze within {timeout_seconds:g} s; they run on",
            remedy=remedy,
            evidence=tuple(_describe_process(pid) for cgroup in late or cgroups for pid in pids_in_cgroup(cgroup)),
        )


def _format_cgroup_names(cgroups: Sequence[Path]) -> str:
    """Return the first few names; a pod may have any number of containers."""
    more = len(cgroups) - _NAMED
    return ", ".join(map(str, cgroups[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def request_freeze(cgroup: Path) -> None:
    """Request a freeze without waiting: processes held elsewhere, as by ptrace, freeze when they are released."""
    with suppress_missing_cgroup():
        if _is_v2(cgroup):
            _write(cgroup / "cgroup.freeze", "1")
        else:
            _write(cgroup / "freezer.state", "FROZEN")


def thaw(cgroup: Path) -> None:
    """Thaw a cgroup. Idempotent; no effect if it is gone."""
    with suppress_missing_cgroup():
        if _is_v2(cgroup):
            _write(cgroup / "cgroup.freeze", "0")
        else:
            _write(cgroup / "freezer.state", "THAWED")


def thaw_together(cgroups: Sequence[Path]) -> None:
    """Thaw all of them."""
    for cgroup in cgroups:
        thaw(cgroup)


def kill(cgroup: Path, timeout_seconds: float = 10.0) -> None:
    """SIGKILL every process of the cgroup, frozen or not, and return when all have gone.

    A frozen process executes no instruction in between, and its TCP connections vanish silently: a restored incarnation
    resumes them (see `tcp_repair`). Zombies whose parent has not waited count as gone.

    Raises:
        FreezerError: some process did not end in time.
    """
    deadline = time.monotonic() + timeout_seconds
    if pids_in_cgroup(cgroup) and is_frozen(cgroup):
        enter_repair_mode(pids_in_cgroup(cgroup))
    while pids := pids_in_cgroup(cgroup):
        # signals before the thaw; several rounds, because a running process may fork between the read and the kill
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        thaw(cgroup)
        if time.monotonic() > deadline:
            raise FreezerError(
                f"processes in {cgroup} are still there {timeout_seconds:g} s after SIGKILL",
                remedy="they are held in the kernel (state D); a reboot may be needed",
                evidence=tuple(_describe_process(pid) for pid in pids),
            )
        _await_exit(pids, deadline)


def _freeze_all(cgroups: Sequence[Path], deadline: float) -> list[Path]:
    """Freeze all; return those that did not freeze in time."""
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
            events.read()  # poll reports the same event until the file is read
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
    """Wait by pidfd until each has ended."""
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


def _read_cgroup_events(cgroup: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (cgroup / "cgroup.events").read_text().splitlines())


def _write(path: Path, value: str) -> None:
    path.write_text(value)


def _describe_process(pid: int) -> str:
    try:
        return " ".join(Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[0].split("(", 1)) + ")"
    except OSError:
        return f"{pid} (gone)"
