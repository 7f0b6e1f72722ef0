"""The mount namespace of a job, such that CRIU can dump it, and restore it elsewhere.

A job has PID, mount and IPC namespaces of its own and the host's network and UTS namespaces. CRIU records every mount
of the job's mount namespace and recreates each on restore, so the namespace must have few mounts, each of a kind that
CRIU can recreate:

    /            the host's root filesystem alone (a bind mount, not recursive), made a mount point and pivoted into;
                 CRIU takes it from `--root` on restore
    /proc        fresh, of the job's PID namespace
    /sys         fresh
    /dev         the host's own: *external* for CRIU, which binds the host's again on restore
    /dev/pts     fresh instance
    /dev/shm     fresh tmpfs: its files are part of the snapshot
    /dev/mqueue  fresh, of the job's IPC namespace (where the host's /dev has that folder)
    /run, /data… every other real mount of the host, by its own path: external as well

Files on the host's filesystems are not part of a snapshot; a restore opens a job's files there by path. A job's own
files (stdout, stderr) must be opened *inside* its mount namespace, or CRIU cannot determine their mount: `launch` does
that.

An external mount's key is its mount point, so dump and restore have the same option: `--external mnt[/dev]:/dev`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

_OWN = ("/proc", "/sys", "/dev")
"""Trees that a job gets fresh or as one mount: the host's mounts below them are excluded."""

_FOREIGN = ("/var/lib/docker", "/var/lib/containers", "/var/lib/containerd", "/var/lib/kubelet", "/snap")
"""Trees where other programs keep mounts of their own."""

_PSEUDO = frozenset({"autofs", "binfmt_misc", "cgroup", "cgroup2", "nsfs", "proc", "rpc_pipefs", "squashfs", "sysfs"})


class Externals(msgspec.Struct, frozen=True):
    """The host's mounts that a job has, by mount point; always includes `/dev`."""

    mounts: tuple[str, ...] = ("/dev",)

    def criu_external_values(self) -> tuple[str, ...]:
        """Return the values of CRIU's `--external`, the same for dump and restore."""
        return tuple(f"mnt[{path}]:{path}" for path in self.mounts)


def host_externals(mountinfo: str | None = None) -> Externals:
    """Return the mounts of this machine for a job besides its root (see the module's text).

    Args:
        mountinfo: text in the form of /proc/PID/mountinfo; this process's own by default.
    """
    if mountinfo is None:
        mountinfo = _read_text(Path("/proc/self/mountinfo"))
    found: dict[str, None] = {"/dev": None}
    for path, fstype in _parse_mounts(mountinfo):
        if (
            path != "/"
            and fstype not in _PSEUDO
            and not _is_below(path, (*_OWN, *_FOREIGN))
            and not _is_below_run(path)
        ):
            found[path] = None
    return Externals(tuple(sorted(found)))


def mount_points(mountinfo: Path) -> set[str]:
    """Return the mount points of a process.

    Raises:
        OSError: the process has ended, or the file cannot be read.
    """
    return {path for path, _ in _parse_mounts(_read_text(mountinfo))}


def _read_text(mountinfo: Path) -> str:
    return mountinfo.read_bytes().decode(errors="surrogateescape")


def _parse_mounts(mountinfo: str) -> Iterator[tuple[str, str]]:
    """Yield mount points and types of file systems."""
    for line in filter(None, mountinfo.split("\n")):  # the kernel ends lines with nothing else
        before, _, after = line.partition(" - ")
        yield _unescape(before.split(" ")[4]), after.split(" ")[0]


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(root) for root in roots)


def _is_below_run(path: str) -> bool:
    """Return whether a mount is below /run, where mounts are transient; /run itself is kept."""
    return path != "/run" and _is_below(path, ("/run",))


def _unescape(path: str) -> str:
    """Decode the kernel's octal escapes of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), path)
