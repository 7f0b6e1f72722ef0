"""Requirements of a snapshot on the machine that restores it.

A frozen process depends on its CPU's features (a library that chose AVX-512 code at start does not choose again) and on
the kernel's interfaces. Both are recorded at the dump and compared before a restore.
"""

from __future__ import annotations

import re
from itertools import zip_longest

import msgspec

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}")


class Compatibility(msgspec.Struct, frozen=True):
    """The properties of a machine that a restore depends on. `kernel` is `(major, minor)`."""

    architecture: str
    cpu_features: frozenset[str] = frozenset()
    kernel: tuple[int, int] = (0, 0)
    criu: str = ""
    page_size_bytes: int = 4096

    def reasons_against(self, host: Compatibility) -> tuple[str, ...]:
        """Return why a snapshot taken on `self` cannot be restored on `host`; empty if it can.

        A newer kernel is accepted, an older one only within one major version: CRIU restores through system calls that
        older kernels may lack, and reports missing ones itself.
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
        """Return whether `host` has an older CRIU than the one that took the snapshot.

        CRIU reads images of older versions, and silently drops unknown fields of newer ones. Unlike the rest of a
        machine, CRIU changes with an upgrade of this product, so the mismatch does not exclude a machine permanently.
        False if a version is missing.
        """
        if not _VERSION.fullmatch(self.criu) or not _VERSION.fullmatch(host.criu):
            return False
        parts = zip_longest(*(map(int, text.split(".")) for text in (self.criu, host.criu)), fillvalue=0)
        return next((theirs > here for theirs, here in parts if theirs != here), False)


class NodeDescription(Compatibility, frozen=True):
    """An agent's description of its node: placement reads the `Compatibility` in it; the rest is informational."""

    runc: str = ""
    """Version of containerd's OCI runtime at the agent's start; empty if unreported."""
