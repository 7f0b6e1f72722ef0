"""System calls that Python 3.11's standard library lacks, with errors as OSError.

Numbers of flags are from linux/sched.h and linux/mount.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_PIDFD_GETFD = 438  # system calls added since Linux 5.0 have the same number everywhere

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _raise_on_failure(_libc.unshare(flags), "unshare")


def clone(flags: int) -> int:
    """Fork, with flags for new namespaces. Returns 0 in the child, its PID in the parent.

    Only for a single-threaded process whose child soon calls exec: the C library is not aware of the child.
    """
    number = _SYS_CLONE[platform.machine()]
    return _raise_on_failure(_libc.syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0), "clone")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a filesystem, or bind one to a second place."""
    result = _libc.mount(
        source.encode(), target.encode(), fstype.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _raise_on_failure(result, f"mount {fstype or source} on {target}")


def umount_detached(target: str) -> None:
    """Detach a mount, umount2(2) with MNT_DETACH: gone from the tree at once, from the kernel when unused."""
    _raise_on_failure(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Exchange the root mount; the old one appears at `put_old`."""
    number = _SYS_PIVOT_ROOT[platform.machine()]
    _raise_on_failure(_libc.syscall(number, new_root.encode(), put_old.encode()), f"pivot_root {new_root}")


def pidfd_getfd(pidfd: int, descriptor: int) -> int:
    """Duplicate another process's open file as a descriptor of this one; needs permission to ptrace it."""
    return _raise_on_failure(_libc.syscall(_SYS_PIDFD_GETFD, pidfd, descriptor, 0), "pidfd_getfd")


def _raise_on_failure(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
