"""Runs as the first process of a machine's own namespaces: lays out its root, then becomes its init.

Only the standard library: it is started as a script. Its argument is a JSON file:

    hostname     of the machine
    lower        folder with the Debian root, read only
    state        folder for the writable layer (upper, work, root) of this machine
    mounts       [[source on this host, absolute target in the machine, read only?], ...]
    files        {absolute path in the machine: text}: laid over what /proc and /sys say, for this boot
    trees        {absolute folder in the machine: {relative path: text}}: likewise, whole folders
    arguments    of the init
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
MNT_DETACH = 2
_OLD = "/.host"


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
    target = str(target)
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or 'bind'} {source}: {os.strerror(code)}", target)


def bind(source: Path, target: str, *, read_only: bool) -> None:
    """Show a file or folder of the host at a place in the machine; links on the way are the machine's own."""
    place = Path(target)
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(str(source), place, flags=MS_BIND | MS_REC)
    if read_only:
        mount("none", place, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def pretend(files: dict[str, str], trees: dict[str, dict[str, str]]) -> None:
    """Lay files over what the kernel says of processors, memory and the boot."""
    folder = Path("/run/pretended")
    folder.mkdir()
    for number, (target, text) in enumerate(files.items()):
        stand_in = folder / str(number)
        stand_in.write_text(text)
        mount(str(stand_in), target, flags=MS_BIND)
    for target, tree in trees.items():
        mount("tmpfs", target, "tmpfs", 0, "mode=755")
        for path, text in tree.items():
            place = Path(target, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


def root_of(specification: dict[str, Any]) -> Path:
    """Mount the overlay that becomes the machine's root."""
    state = Path(specification["state"])
    for name in ("upper", "work", "root"):
        (state / name).mkdir(parents=True, exist_ok=True)
    root = state / "root"
    options = f"lowerdir={specification['lower']},upperdir={state / 'upper'},workdir={state / 'work'}"
    mount("overlay", root, "overlay", 0, options)
    return root


def enter(root: Path) -> None:
    """Make it the root; the host's stays at `_OLD` until `leave_host`."""
    old = root / _OLD.lstrip("/")
    old.mkdir(exist_ok=True)
    os.chdir(root)
    subprocess.run(["pivot_root", ".", _OLD.lstrip("/")], check=True)
    os.chdir("/")


def leave_host() -> None:
    if _libc.umount2(_OLD.encode(), MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "cannot leave the old root")
    Path(_OLD).rmdir()
    mount("none", "/", flags=MS_SHARED | MS_REC)  # volumes that a pod mounts are seen by others, as under systemd


def kernel_file_systems() -> None:
    """/proc, /sys with the control groups, /dev, /run, as a freshly booted machine has them."""
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(f"{_OLD}/dev", "/dev", flags=MS_BIND | MS_REC)
    for folder in ("/dev/shm", "/run", "/tmp"):
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV)
    Path("/tmp").chmod(0o1777)
    Path("/run/lock").mkdir()
    control_groups(Path("/sys/fs/cgroup"))


def control_groups(target: Path, memberships: Path = Path("/proc/self/cgroup")) -> None:
    """Every hierarchy, mounted from inside the machine's cgroup namespace: the machine's group is their root."""
    lines = memberships.read_text().splitlines()
    hierarchies = [line.split(":", 2)[1] for line in lines]
    if hierarchies == [""]:
        mount("cgroup2", target, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        hand_down(target)
        return
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755")
    for controllers in hierarchies:
        name = controllers.removeprefix("name=") or "unified"
        folder = target / name
        folder.mkdir()
        if name == "unified":
            mount("cgroup2", folder, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        else:
            options = f"none,{controllers}" if controllers.startswith("name=") else controllers
            mount("cgroup", folder, "cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
        for alias in controllers.split(",") if "," in controllers else ():
            (target / alias).symlink_to(name)


def hand_down(group: Path) -> None:
    """Let the kubelet's groups have every controller; nobody is in the machine's group itself, but in a leaf of it."""
    for name in (group / "cgroup.controllers").read_text().split():
        try:
            (group / "cgroup.subtree_control").write_text(f"+{name}")
        except OSError as error:  # the kubelet says which of them it misses
            print(f"the controller {name} is refused to the machine's groups: {error}", file=sys.stderr)


def forget_caller() -> None:
    """Take off what the program that boots this machine may have set for itself."""
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def main() -> None:
    specification = json.loads(Path(sys.argv[1]).read_text())
    forget_caller()
    socket.sethostname(specification["hostname"])
    root = root_of(specification)
    mounts = [
        (Path(source).resolve(strict=True), target, read_only) for source, target, read_only in specification["mounts"]
    ]
    enter(root)
    kernel_file_systems()
    for source, target, read_only in mounts:
        bind(Path(_OLD, source.relative_to("/")), target, read_only=read_only)
    pretend(specification["files"], specification["trees"])
    leave_host()
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    os.execve("/usr/bin/tini", ["tini", "--", *specification["arguments"]], environment)  # noqa: S606


if __name__ == "__main__":
    main()
