"""The control groups of captures: what a hostile workload makes CRIU take is bounded, and no memory of other pods.

    cedana-sched-captures/PID-…    in v1's hierarchy of `memory`, or in v2, beside `kubepods`

They are made, limited and removed through the host's own mounts. Pages that CRIU reads stay the workload's, whose group
has them already; what is counted here are CRIU's own lists, and what the capture compresses and sends. What is cached
of files that it writes counts as well, and is given up before anything is killed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedana_sched.snapshot.cgroups import UNIFIED, Cgroup, CgroupError, abandoned, find_roots

PARENT = "cedana-sched-captures"
MEMORY = "memory"


class CaptureGroups:
    """Those of one node.

    Args:
        hierarchy: `memory` of v1, or `unified`.
        root: of that hierarchy, as this process sees it.
    """

    def __init__(self, hierarchy: str, root: Path) -> None:
        self._hierarchy = hierarchy
        self._root = root

    @classmethod
    def of(cls, host_root: Path, mountinfo: Iterable[str]) -> CaptureGroups:
        """Find where they belong on a host.

        Args:
            host_root: where its files are seen.
            mountinfo: of its first process.

        Raises:
            CgroupError: it has no controller of memory to give.
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

    def new(self, pid: int) -> Cgroup:
        """A group for a capture, not made yet. No other one has its name, though its PID comes again."""
        name = f"{pid}-{secrets.token_hex(4)}"
        return Cgroup({self._hierarchy: str(self._root / PARENT / name)}, controllers=(MEMORY,))

    def tidy(self) -> None:
        """Remove groups whose captures have ended while no agent ran, and that of all once it is empty.

        One that is younger than a minute may be waiting for its process, of another agent on this machine.
        """
        parent = self._root / PARENT
        for path in (*abandoned(parent), parent):
            with suppress(OSError):  # the kernel refuses it while there is a process, or another group
                path.rmdir()


def memory_of_this_machine() -> int:
    """Bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
