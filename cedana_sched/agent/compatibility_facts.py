"""This node's properties on which a frozen process depends."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path

from cedana_sched.model.compatibility import Compatibility


@cache
def compatibility_of_node(criu_version: str) -> Compatibility:
    """Return the properties that every snapshot records, and every restore compares.

    CPU features are the kernel's names in `/proc/cpuinfo` (`flags` on x86, `Features` on Arm).
    """
    return Compatibility(
        architecture=platform.machine(),
        cpu_features=_cpu_features(Path("/proc/cpuinfo").read_text()),
        kernel=_parse_kernel_version(platform.release()),
        criu=criu_version,
        page_size_bytes=os.sysconf("SC_PAGE_SIZE"),
    )


def _cpu_features(cpuinfo: str) -> frozenset[str]:
    """Return the features of the first CPU: CRIU refuses to restore on machines whose CPUs differ."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


def _parse_kernel_version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
