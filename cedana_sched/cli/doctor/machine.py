"""Checks of the kernel, capabilities, namespaces and control groups."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cedana_sched.cli.doctor.check_runner import Finding, Level

OLDEST_KERNEL = (5, 9)
"""First kernel with CAP_CHECKPOINT_RESTORE; it also has clone3(set_tid), which CRIU's restore uses."""


class Capability(NamedTuple):
    """A capability of root that containers and small virtual machines may drop. `bit` is from linux/capability.h."""

    name: str
    bit: int
    level: Level
    without: str


CAPABILITIES = (
    Capability("CAP_SYS_ADMIN", 21, Level.FAIL, "jobs cannot get namespaces of their own, and CRIU cannot work"),
    Capability("CAP_SYS_PTRACE", 19, Level.FAIL, "CRIU cannot read the memory of processes"),
    Capability("CAP_KILL", 5, Level.FAIL, "jobs of other users cannot be stopped"),
    Capability("CAP_SETUID", 7, Level.FAIL, "jobs cannot run, or be restored, as other users"),
    Capability("CAP_SETGID", 6, Level.FAIL, "jobs cannot run, or be restored, as other users"),
    Capability("CAP_CHECKPOINT_RESTORE", 40, Level.WARN, "CAP_SYS_ADMIN must stand in for it"),
    Capability("CAP_NET_ADMIN", 12, Level.WARN, "established TCP connections cannot be dumped"),
    Capability("CAP_SYS_RESOURCE", 24, Level.WARN, "CRIU cannot read the limits of other users' processes by itself"),
)
_REMEDY = "run as root on the machine itself, or give the container this capability"
_NAMESPACES = ("pid", "mnt", "ipc")


def kernel() -> Iterator[Finding]:
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    message = f"Linux {release} on {platform.machine()}"
    if version < OLDEST_KERNEL:
        oldest = ".".join(str(part) for part in OLDEST_KERNEL)
        yield Finding("kernel", Level.FAIL, f"{message} is too old", f"use Linux {oldest} or newer")
    elif not Path("/proc/self/map_files").exists():
        remedy = "use a kernel built with CONFIG_CHECKPOINT_RESTORE, as all distributions' are"
        yield Finding("kernel", Level.FAIL, f"{message} was built without CONFIG_CHECKPOINT_RESTORE", remedy)
    else:
        yield Finding("kernel", Level.OK, message)


def capabilities(status: str | None = None) -> Iterator[Finding]:
    """Check the effective capabilities; `status` is the text of /proc/self/status."""
    text = Path("/proc/self/status").read_text() if status is None else status
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", text, re.MULTILINE)
    held = int(match[1], 16) if match else 0
    missing = [capability for capability in CAPABILITIES if not held >> capability.bit & 1]
    for capability in missing:
        yield Finding("capabilities", capability.level, f"{capability.name} is missing: {capability.without}", _REMEDY)
    if not missing:
        yield Finding("capabilities", Level.OK, "root has every capability that is needed")


def namespaces() -> Iterator[Finding]:
    """Check by a trial that a job can have PID, mount and IPC namespaces of its own."""
    program = shutil.which("unshare")
    if program is None:
        yield Finding("namespaces", Level.WARN, "could not be tried", "apt-get install util-linux")
        return
    tried = subprocess.run(
        [program, "--pid", "--mount", "--ipc", "--fork", "--", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        yield Finding("namespaces", Level.OK, f"jobs get their own {', '.join(_NAMESPACES)} namespaces")
    else:
        cause = tried.stderr.strip() or f"exit code {tried.returncode}"
        yield Finding("namespaces", Level.FAIL, f"a job cannot get its own: {cause}", "run as root, not in a container")


def control_groups() -> Iterator[Finding]:
    from cedana_sched.snapshot.cgroups import UNIFIED, find_roots

    roots = find_roots(Path("/proc/self/mountinfo").read_text().splitlines())
    if UNIFIED in roots:
        names = set((roots[UNIFIED] / "cgroup.controllers").read_text().split())
        version = "v2"
    else:
        names = set(roots)
        version = "v1"
    wanted = ("cpu", "memory", "pids")
    present = [name for name in wanted if name in names]
    message = f"{version}, jobs can be frozen; limits: {', '.join(present) or 'none'}"
    if absent := [name for name in wanted if name not in names]:
        remedy = f"enable the controller of {', '.join(absent)}, or jobs can use more than they request"
        yield Finding("cgroups", Level.WARN, message, remedy)
    else:
        yield Finding("cgroups", Level.OK, message)
