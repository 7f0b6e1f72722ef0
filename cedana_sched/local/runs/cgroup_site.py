"""Where on this machine the control groups of runs belong.

A run's processes are in `cedana-sched/<run uid>` below the root of each hierarchy, never below the engine's own
group: they outlive the engine, and stay where they are when it comes back in another one. Their supervisors share
`cedana-sched/supervisors`, outside every run's freezer and limits.

Called by the runtime when it prepares a run, and when it clears away what a crash left.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from cedana_sched.snapshot.cgroups import Cgroup, abandoned, find_roots

PARENT = "cedana-sched"
SUPERVISORS = "supervisors"


class CgroupSite:
    """Where on this machine the groups of runs belong.

    Args:
        roots: of the hierarchies, by their names.
        parent: the folder below each root. Who uses another one may use the uids of others again.
    """

    def __init__(self, roots: Mapping[str, Path], parent: str = PARENT) -> None:
        self.roots = dict(roots)
        self._parent = parent

    @classmethod
    def of_this_machine(cls, parent: str = PARENT) -> CgroupSite:
        """Find the hierarchies.

        Raises:
            CgroupError: there is none that can freeze processes.
        """
        return cls(find_roots(Path("/proc/self/mountinfo").read_text().splitlines()), parent)

    def run(self, uid: str) -> Cgroup:
        return Cgroup({name: str(root / self._parent / uid) for name, root in self.roots.items()})

    def supervisors(self) -> Cgroup:
        return self.run(SUPERVISORS)

    def tidy(self) -> None:
        """Remove empty groups that nobody will use: of runs whose engine and records are gone, then the shared ones.

        A group that is younger than a minute may be waiting for its first process, of this engine or another one.
        """
        for root in dict.fromkeys(self.roots.values()):
            parent = root / self._parent
            runs = (path for path in abandoned(parent) if path.name != SUPERVISORS)
            for path in (*runs, parent / SUPERVISORS, parent):
                try:
                    path.rmdir()  # the kernel refuses it while there is a process
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY, errno.ENOENT):
                        raise
