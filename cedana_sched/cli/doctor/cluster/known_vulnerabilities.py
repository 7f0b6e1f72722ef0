"""Vulnerabilities of container runtimes through which a tenant may attack a node, and the versions that fix them.

The single source of such versions, from the advisories (GHSA) of `containerd/containerd` and `opencontainers/runc`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

Version = tuple[int, int, int]

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?!\d|[-~](?:alpha|beta|rc))")


class Vulnerability(msgspec.Struct, frozen=True):
    """A vulnerability. `fixed` has the first fixed version of each maintained release line, in ascending order."""

    names: str
    fixed: tuple[Version, ...]

    def is_in(self, version: Version) -> bool:
        """Whether `version` is vulnerable: older release lines than the fixed ones are, newer release lines are not."""
        for good in self.fixed:
            if version[:2] == good[:2]:
                return version < good
        return version < self.fixed[-1]


CONTAINERD: Final = (
    # GHSA-pwhc-rpq9-4c8w, GHSA-m6hq-p25p-ffr2 (November 2025)
    Vulnerability("CVE-2024-25621, CVE-2025-64329", ((1, 7, 29), (2, 0, 7), (2, 1, 5), (2, 2, 0))),
    # GHSA-xhf5-7wjv-pqxp (June 2026): labels of an image become commands on the host
    Vulnerability("CVE-2026-53488", ((1, 7, 33), (2, 0, 10), (2, 1, 9), (2, 2, 5), (2, 3, 2))),
)
RUNC: Final = (
    # GHSA-xr7r-f8xq-vfvv (January 2024): a container's working directory may be the host's
    Vulnerability("CVE-2024-21626", ((1, 1, 12),)),
    # GHSA-9493-h29p-rfm2, GHSA-qw9x-cqr3-wc7r, GHSA-cgrx-mc8f-2prm (November 2025)
    Vulnerability("CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", ((1, 2, 8), (1, 3, 3), (1, 4, 0))),
)


def read_version(text: str) -> Version | None:
    """Return the three leading numbers of a version such as `1.7.29-0ubuntu1`; None if it has no such prefix.

    None also for a pre-release, because the advisories do not cover release candidates reliably.
    """
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def fixed_versions(holes: tuple[Vulnerability, ...]) -> str:
    """Return, as text, the first version of each release line that has all vulnerabilities fixed."""
    best: dict[tuple[int, int], int] = {}
    for version in (version for hole in holes for version in hole.fixed):
        if not any(hole.is_in(version) for hole in holes):
            major, minor, patch = version
            best[major, minor] = max(patch, best.get((major, minor), 0))
    return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(best.items()))
