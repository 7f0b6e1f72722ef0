"""The layout of the runs' control groups.

A run's processes are in `cedana-sched/<run uid>` below the root of each hierarchy, never below the engine's own
group: the processes outlive the engine, and keep their group when the engine restarts in another one. Supervisors
share `cedana-sched/supervisors`, outside every run's freezer and limits.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from cedana_sched.snapshot.cgroups import Cgroup, find_abandoned_groups, find_roots

PARENT = "cedana-sched"
SUPERVISORS = "supervisors"


class CgroupSite:
    """The parent directories of the runs' control groups on this machine.

    Args:
        roots: mount points of the hierarchies, by name.
        parent: the directory below each root. Run uids are unique per parent.
    """

    def __init__(self, roots: Mapping[str, Path], parent: str = PARENT) -> None:
        self.roots = dict(roots)
        self._parent = parent

    @classmethod
    def of_this_machine(cls, parent: str = PARENT) -> CgroupSite:
        """Discover the hierarchies of this machine.

        Raises:
            CgroupError: no hierarchy can freeze processes.
        """
        return cls(find_roots(Path("/proc/self/mountinfo").read_text().splitlines()), parent)

    def run_group(self, uid: str) -> Cgroup:
        return Cgroup({name: str(root / self._parent / uid) for name, root in self.roots.items()})

    def supervisors_group(self) -> Cgroup:
        return self.run_group(SUPERVISORS)

    def remove_unused_groups(self) -> None:
        """Remove unused empty groups: of runs whose engine and records are gone, then the shared ones.

        A group younger than a minute is kept: this engine or another one may still add its first process.
        """
        for root in dict.fromkeys(self.roots.values()):
            parent = root / self._parent
            runs = (path for path in find_abandoned_groups(parent) if path.name != SUPERVISORS)
            for path in (*runs, parent / SUPERVISORS, parent):
                try:
                    path.rmdir()  # fails in the kernel while the group has a process
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY, errno.ENOENT):
                        raise
