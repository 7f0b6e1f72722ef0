"""What tests must not leave behind on this machine."""

from __future__ import annotations

from pathlib import Path


def mounts() -> list[str]:
    """The mounts of this machine, less its named network namespaces: a test cluster that is up makes some."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if not line.split()[4].startswith("/run/netns")]
