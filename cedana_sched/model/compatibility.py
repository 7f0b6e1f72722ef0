"""What a snapshot asks of the machine that is to continue it.

A frozen process holds pointers into its CPU's features (a library chose AVX-512 code at start, and will not
choose again) and into the kernel's interfaces. Both are recorded at the dump and compared before a restore.
"""

from __future__ import annotations

import re
from itertools import zip_longest

import msgspec

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}")


class Compatibility(msgspec.Struct, frozen=True):
    """A machine as far as a frozen process cares. `kernel` is `(major, minor)`."""

    architecture: str
    cpu_features: frozenset[str] = frozenset()
    kernel: tuple[int, int] = (0, 0)
    criu: str = ""
    page_size_bytes: int = 4096

    def reasons_against(self, host: Compatibility) -> tuple[str, ...]:
        """Why a snapshot taken on `self` cannot continue on `host`; empty when it can.

        A newer kernel is fine, an older one only within one major version: CRIU restores through system calls
        that older kernels may lack, and says so itself when one is missing.
        """
        reasons: list[str] = []
        if host.architecture != self.architecture:
            reasons.append(f"the snapshot was taken on {self.architecture}, this machine is {host.architecture}")
            return tuple(reasons)
        if missing := sorted(self.cpu_features - host.cpu_features):
            reasons.append(f"this machine's CPU lacks {', '.join(missing)}")
        if host.page_size_bytes != self.page_size_bytes:
            reasons.append(f"pages are {host.page_size_bytes} bytes here, {self.page_size_bytes} in the snapshot")
        if host.kernel[0] < self.kernel[0]:
            reasons.append("kernel {}.{} is older than the snapshot's {}.{}".format(*host.kernel, *self.kernel))
        return tuple(reasons)

    def needs_newer_criu_than(self, host: Compatibility) -> bool:
        """Whether CRIU is older on `host` than the one that took the snapshot.

        CRIU reads the images of older ones; of newer ones it passes over fields that it does not define, which would be
        lost silently. Unlike the rest of a machine, CRIU changes with an upgrade of ours: so nobody is kept away from
        a machine for good because of it. False where a version is missing.
        """
        if not _VERSION.fullmatch(self.criu) or not _VERSION.fullmatch(host.criu):
            return False
        parts = zip_longest(*(map(int, text.split(".")) for text in (self.criu, host.criu)), fillvalue=0)
        return next((theirs > here for theirs, here in parts if theirs != here), False)


class NodeDescription(Compatibility, frozen=True):
    """What an agent says of its node: who looks for a place reads the `Compatibility` in it, people the rest."""

    runc: str = ""
    """Version of what containerd started containers with when the agent began; empty: it does not say."""
