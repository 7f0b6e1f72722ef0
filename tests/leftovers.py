"""What tests must not leave behind on this machine, told by what bears the test's own folder in its name.

Others use the machine as well: their mounts come and go while a test runs.
"""

from __future__ import annotations

from pathlib import Path


def mounts_below(folder: Path, mountinfo: str | None = None) -> list[str]:
    """Where something is mounted below a folder; `mountinfo` is this process's own by default."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    points = [Path(line.split()[4].encode().decode("unicode_escape")) for line in text.splitlines()]
    return [str(point) for point in points if point.is_relative_to(folder)]
