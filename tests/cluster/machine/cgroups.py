"""The control groups of a cluster and its machines, in every hierarchy that this kernel has mounted.

Every process of a cluster lives below `<cluster>/<machine>`, so a machine is paused, and a crashed cluster is found and
ended, by its group alone. Version 1 has a folder for each controller; version 2 has one tree.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import tenacity

from tests.cluster.errors import ClusterError

MOUNT = Path("/sys/fs/cgroup")
_NEEDED = ("cpu", "cpuset", "memory", "pids")


def is_version_2(mount: Path = MOUNT) -> bool:
    """Whether this machine has the unified hierarchy alone."""
    return (mount / "cgroup.controllers").exists()


def missing_controllers(mount: Path = MOUNT) -> list[str]:
    """Controllers that a kubelet needs and this kernel does not offer."""
    if is_version_2(mount):
        offered = set((mount / "cgroup.controllers").read_text().split())
    else:
        offered = {hierarchy.name for hierarchy in _hierarchies(mount)}
    return [name for name in _NEEDED if name not in offered]


def _hierarchies(mount: Path) -> Iterator[Path]:
    if is_version_2(mount):
        yield mount
        return
    for folder in sorted(mount.iterdir()):
        if folder.is_dir() and not folder.is_symlink() and (folder / "cgroup.procs").exists():
            yield folder


class ControlGroup:
    """One group, by its path below the root of every hierarchy."""

    def __init__(self, path: str, mount: Path = MOUNT) -> None:
        self.path = path
        self._mount = mount

    def folders(self) -> list[Path]:
        """Where the group is, or would be, in each hierarchy."""
        return [hierarchy / self.path for hierarchy in _hierarchies(self._mount)]

    def create(self) -> None:
        """Make the group everywhere; in version 1 a new cpuset takes its parent's processors, or nothing could join."""
        for folder in self.folders():
            for level in (*reversed(folder.relative_to(self._mount).parents), folder.relative_to(self._mount)):
                current = self._mount / level
                current.mkdir(exist_ok=True)
                self._hand_down(current)

    def _hand_down(self, folder: Path) -> None:
        if is_version_2(self._mount):
            control = folder.parent / "cgroup.subtree_control"
            if folder != self._mount and control.exists():
                offered = (folder.parent / "cgroup.controllers").read_text().split()
                control.write_text(" ".join(f"+{name}" for name in offered))
            return
        for name in ("cpuset.cpus", "cpuset.mems"):
            own, parents = folder / name, folder.parent / name
            if own.exists() and parents.exists() and not own.read_text().strip():
                own.write_text(parents.read_text())

    def processes(self) -> set[int]:
        """Every process in the group and below it, by its number on this machine."""
        found: set[int] = set()
        for folder in self.folders():
            for listing in folder.rglob("cgroup.procs"):
                with contextlib.suppress(FileNotFoundError, OSError):  # a group may vanish while it is read
                    found.update(int(line) for line in listing.read_text().split())
        found.discard(0)  # a process of another PID namespace than ours
        return found

    def freeze(self) -> None:
        """Stop every process of the group where it is."""
        self._set_frozen(frozen=True)

    def thaw(self) -> None:
        """Let them go on."""
        self._set_frozen(frozen=False)

    def _set_frozen(self, *, frozen: bool) -> None:
        for folder in self.folders():
            if (state := folder / "freezer.state").exists():
                state.write_text("FROZEN" if frozen else "THAWED")
            elif (state := folder / "cgroup.freeze").exists():
                state.write_text("1" if frozen else "0")

    def end(self) -> None:
        """Kill everything in the group and remove it.

        Raises:
            ClusterError: a process survives its SIGKILL for 10 s.
        """
        if any(folder.exists() for folder in self.folders()):
            self._thaw_all()
            self._kill()
            self._remove()

    def _thaw_all(self) -> None:
        for folder in self.folders():
            for state in folder.rglob("freezer.state"):  # a frozen process of version 1 does not even die
                with contextlib.suppress(OSError):
                    state.write_text("THAWED")

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.02),
        stop=tenacity.stop_after_delay(10),
        retry=tenacity.retry_if_exception_type(ClusterError),
        reraise=True,
    )
    def _kill(self) -> None:
        left = self.processes() - {os.getpid()}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if left:
            raise ClusterError(
                f"processes {sorted(left)[:5]} of {self.path} do not end",
                remedy="see their /proc/PID/stack; a hung mount is the usual cause",
            )

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.05),
        stop=tenacity.stop_after_delay(10),
        retry=tenacity.retry_if_exception_type(OSError),
        reraise=True,
    )
    def _remove(self) -> None:
        for folder in self.folders():
            for current, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(FileNotFoundError):
                    Path(current).rmdir()


def remove_tree(folder: Path) -> None:
    """Delete a folder and all below it; nothing when it is absent."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
