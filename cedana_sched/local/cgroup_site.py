"""Where on this machine the control groups of runs belong.

A run's processes are in `cedana-sched/<run uid>` below the root of each hierarchy, never below the engine's own
group: they outlive the engine, and stay where they are when it comes back in another one. Their supervisors share
`cedana-sched/supervisors`, outside every run's freezer and limits.

Called by the runtime when it prepares a run, and when it clears away what a crash left.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path

from cedana_sched.local.cgroups import UNIFIED, CgroupError, RunCgroup

PARENT = "cedana-sched"
SUPERVISORS = "supervisors"

_V1_CONTROLLERS = ("freezer", "memory", "cpu", "cpuacct", "pids")


class CgroupSite:
    """Where on this machine the groups of runs belong."""

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self.roots = dict(roots)

    @classmethod
    def of_this_machine(cls) -> CgroupSite:
        """Find the hierarchies.

        Raises:
            CgroupError: there is none that can freeze processes.
        """
        return cls(find_roots(Path("/proc/self/mountinfo").read_text().splitlines()))

    def run(self, uid: str) -> RunCgroup:
        return RunCgroup({name: str(root / PARENT / uid) for name, root in self.roots.items()})

    def supervisors(self) -> RunCgroup:
        return self.run(SUPERVISORS)

    def tidy(self) -> None:
        """Remove the groups that all runs share, if no run is left."""
        for root in dict.fromkeys(self.roots.values()):
            for path in (root / PARENT / SUPERVISORS, root / PARENT):
                try:
                    path.rmdir()
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY, errno.ENOENT):
                        raise


def find_roots(mountinfo: Iterable[str]) -> dict[str, Path]:
    """From /proc/self/mountinfo the root of each v1 controller's hierarchy, or `{"unified": root}` for v2.

    A hybrid machine (v1 controllers, and a v2 hierarchy that has none) counts as v1.

    Raises:
        CgroupError: neither a v1 freezer nor v2 is mounted.
    """
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo:
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split()[4])
        if kind == "cgroup2":
            v2 = point
        elif kind == "cgroup":
            v1 |= {name: point for name in options.split(",") if name in _V1_CONTROLLERS}
    if "freezer" in v1:
        return v1
    if v2 is not None:
        return {UNIFIED: v2}
    raise CgroupError(
        "no control group hierarchy that can freeze processes is mounted",
        remedy="mount cgroup2 on /sys/fs/cgroup, or the v1 freezer on /sys/fs/cgroup/freezer",
    )
