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
from tests.cluster.patience import patient

MOUNT = Path("/sys/fs/cgroup")
LEAF = "init"
"""In version 2 a group whose children have controllers holds no processes itself: those of a machine begin here."""
_PROCESSES = "cgroup.procs"
_NEEDED = ("cpu", "cpuset", "memory", "pids")
_ENDS_WITHIN = patient(30)
_REMEDY = "see whether control groups can be written here: a container needs its own, writable ones"


def is_version_2(mount: Path = MOUNT) -> bool:
    """Whether this machine has the unified hierarchy alone."""
    return (mount / "cgroup.controllers").exists()


def missing_controllers(mount: Path = MOUNT) -> list[str]:
    """Controllers that a kubelet needs and this kernel does not offer."""
    if is_version_2(mount):
        offered = set((mount / "cgroup.controllers").read_text().split())
    else:
        offered = {name for hierarchy in _hierarchies(mount) for name in hierarchy.name.split(",")}
    return [name for name in _NEEDED if name not in offered]


def _hierarchies(mount: Path) -> Iterator[Path]:
    if is_version_2(mount):
        yield mount
    elif mount.is_dir():
        for folder in sorted(mount.iterdir()):
            if not folder.is_symlink() and (folder / "cgroup.procs").exists():  # cpu is a link to cpu,cpuacct
                yield folder


class ControlGroup:
    """One group, by its path below the root of every hierarchy."""

    def __init__(self, path: str, mount: Path = MOUNT) -> None:
        self.path = path
        self._mount = mount

    def folders(self) -> list[Path]:
        """Where the group is, or would be, in each hierarchy."""
        return [hierarchy / self.path for hierarchy in _hierarchies(self._mount)]

    def doors(self) -> list[Path]:
        """Files that a process joins the group by."""
        return [folder / _PROCESSES for folder in self.folders()]

    def leaf_doors(self) -> list[Path]:
        """Files that a process joins by in which it may stay while the group has children."""
        return [self._mount / self.path / LEAF / _PROCESSES] if is_version_2(self._mount) else []

    @tenacity.retry(  # another cluster's end may take away an empty parent between two steps
        stop=tenacity.stop_after_attempt(10), retry=tenacity.retry_if_exception_type(FileNotFoundError), reraise=True
    )
    def create(self) -> None:
        """Make the group everywhere, with the controllers of its parents.

        Raises:
            ClusterError: the kernel says no.
        """
        try:
            for hierarchy in _hierarchies(self._mount):
                current = hierarchy
                for part in Path(self.path).parts:
                    current /= part
                    self._make(current)
            for door in self.leaf_doors():
                door.parent.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ClusterError(f"the control group {self.path} cannot be made: {error}", remedy=_REMEDY) from error

    def _make(self, folder: Path) -> None:
        if is_version_2(self._mount):
            hand_down(folder.parent)
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # version 1: nothing can join a group without processors
            own, parents = folder / name, folder.parent / name
            if not is_version_2(self._mount) and own.exists() and not own.read_text().strip():
                own.write_text(parents.read_text())

    def processes(self) -> set[int]:
        """Every process in the group and below it, by its number on this machine."""
        found: set[int] = set()
        for folder in self._folders_below():
            with contextlib.suppress(OSError):  # a group may vanish while it is read
                found.update(int(line) for line in (folder / _PROCESSES).read_text().split())
        found.discard(0)  # a process of another PID namespace than ours
        return found

    def _folders_below(self) -> list[Path]:
        """The group and all below it in every hierarchy, the lowest first."""
        return [Path(current) for folder in self.folders() for current, _, _ in os.walk(folder, topdown=False)]

    def holds(self, pid: int) -> bool:
        """Whether a process is in the group or below it."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return any(f"/{self.path}/" in f"{line.split(':', 2)[2]}/" for line in lines)

    def freeze(self) -> None:
        """Stop every process of the group where it is; returns when all have stopped.

        Raises:
            ClusterError: they go on for half a minute.
        """
        self._set_frozen(frozen=True)
        self._wait_until_frozen()

    def thaw(self) -> None:
        """Let them go on."""
        self._set_frozen(frozen=False)

    def _freezer(self) -> Path | None:
        """Version 1's controller where there is one, else what every group of version 2 has."""
        found = [folder / name for name in ("freezer.state", "cgroup.freeze") for folder in self.folders()]
        return next((path for path in found if path.exists()), None)

    def _set_frozen(self, *, frozen: bool) -> None:
        freezer = self._freezer()
        if freezer is None:
            raise ClusterError(
                f"the control group {self.path} cannot be frozen", remedy="boot a kernel with the freezer controller"
            )
        words = ("THAWED", "FROZEN") if freezer.name == "freezer.state" else ("0", "1")
        freezer.write_text(words[frozen])

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.01),
        stop=tenacity.stop_after_delay(_ENDS_WITHIN),
        retry=tenacity.retry_if_exception_type(ClusterError),
        reraise=True,
    )
    def _wait_until_frozen(self) -> None:
        freezer = self._freezer()
        if freezer is not None and freezer.name == "freezer.state":
            frozen = freezer.read_text().strip() == "FROZEN"
        else:
            frozen = "frozen 1" in (self._mount / self.path / "cgroup.events").read_text().splitlines()
        if not frozen:
            raise ClusterError(f"the control group {self.path} does not freeze", remedy="see its processes' stacks")

    def end(self) -> None:
        """Kill everything in the group and remove it, and its parents that are empty then.

        Raises:
            ClusterError: a process survives its SIGKILL for half a minute, or a group cannot be removed.
        """
        if any(folder.exists() for folder in self.folders()):
            self._kill(set())
            self._remove()

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.02),
        stop=tenacity.stop_after_delay(_ENDS_WITHIN),
        retry=tenacity.retry_if_exception_type(ClusterError),
        reraise=True,
    )
    def _kill(self, seen: set[int]) -> None:
        """Until none is left, and none of those `seen` is on its way out, which the group does not list any more."""
        left = self.processes() - {os.getpid()}
        seen |= left
        left |= {pid for pid in seen if self.holds(pid) and _runs(pid)}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thaw_all()
        if left:
            raise ClusterError(
                f"processes {sorted(left)[:5]} of {self.path} do not end",
                remedy="see their /proc/PID/stack; a hung mount is the usual cause",
            )

    def _thaw_all(self) -> None:
        for folder in self._folders_below():
            state = folder / "freezer.state"
            if state.exists():  # a frozen process of version 1 does not even die
                with contextlib.suppress(OSError):
                    state.write_text("THAWED")

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.05),
        stop=tenacity.stop_after_delay(_ENDS_WITHIN),
        retry=tenacity.retry_if_exception_type(ClusterError),
        reraise=True,
    )
    def _remove(self) -> None:
        for folder in self._folders_below():
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ClusterError(f"the control group {folder} stays: {error}", remedy=f"rmdir {folder}") from error
        for hierarchy in _hierarchies(self._mount):
            for parent in list(Path(self.path).parents)[:-1]:
                with contextlib.suppress(OSError):  # other clusters' groups are in it
                    (hierarchy / parent).rmdir()


def _runs(pid: int) -> bool:
    """Whether it is more than an entry that its parent has not taken note of."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def hand_down(folder: Path) -> None:
    """Let a group of version 2 give its children every controller that it has.

    Raises:
        OSError: one that a kubelet needs is refused; others may be.
    """
    control = folder / "cgroup.subtree_control"
    given = set(control.read_text().split())
    for name in (folder / "cgroup.controllers").read_text().split():
        if name not in given:
            try:
                control.write_text(f"+{name}")
            except OSError:
                if name in _NEEDED:
                    raise


def remove_tree(folder: Path) -> None:
    """Delete a folder and all below it; nothing when it is absent."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
