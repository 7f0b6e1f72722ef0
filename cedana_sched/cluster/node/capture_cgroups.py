"""The control groups of captures: they bound the memory that a hostile workload makes CRIU use, and protect other pods.

    cedana-sched-captures/PID-…    in v1's hierarchy of `memory`, or in v2, beside `kubepods`

They are created, limited and removed through the host's own mounts. Pages that CRIU reads stay charged to the
workload's group; these groups are charged for CRIU's own lists and for what the capture compresses and sends. The page
cache of files that CRIU writes is charged as well, and is reclaimed before any process is killed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedana_sched.snapshot.cgroups import UNIFIED, Cgroup, CgroupError, find_abandoned_groups, find_roots

PARENT = "cedana-sched-captures"
MEMORY = "memory"


class CaptureCgroups:
    """The capture groups of one node.

    Args:
        hierarchy: `memory` of v1, or `unified`.
        root: of that hierarchy, as this process sees it.
    """

    def __init__(self, hierarchy: str, root: Path) -> None:
        self._hierarchy = hierarchy
        self._root = root

    @classmethod
    def find_on_host(cls, host_root: Path, mountinfo: Iterable[str]) -> CaptureCgroups:
        """Locate the parent of the capture groups on a host.

        Args:
            host_root: where the host's files are mounted.
            mountinfo: of the host's first process.

        Raises:
            CgroupError: the host has no memory controller to delegate.
        """
        try:
            roots = find_roots(mountinfo)
            hierarchy = UNIFIED if UNIFIED in roots else MEMORY
            root = host_root / roots[hierarchy].relative_to("/")
            gives = hierarchy == MEMORY or MEMORY in (root / "cgroup.subtree_control").read_text().split()
        except (OSError, KeyError) as error:
            raise CgroupError("the control groups of this node have no memory controller") from error
        if not gives:
            raise CgroupError("the root of this node's control groups does not hand on its memory controller")
        return cls(hierarchy, root)

    def new_capture_cgroup(self, pid: int) -> Cgroup:
        """Return a group for a capture, not created yet. The name is unique although PIDs are reused."""
        name = f"{pid}-{secrets.token_hex(4)}"
        return Cgroup({self._hierarchy: str(self._root / PARENT / name)}, controllers=(MEMORY,))

    def remove_abandoned_groups(self) -> None:
        """Remove groups whose captures have ended while no agent ran, and the parent once it is empty.

        A group younger than a minute may be waiting for its process, started by another agent on this machine.
        """
        parent = self._root / PARENT
        for path in (*find_abandoned_groups(parent), parent):
            with suppress(OSError):  # the kernel refuses while the group has a process or a child group
                path.rmdir()


def memory_of_this_machine() -> int:
    """Return the size of the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
