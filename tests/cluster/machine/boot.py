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
import subprocess
import sys
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
MNT_DETACH = 2


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
    target = str(target)
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or 'bind'} {source}: {os.strerror(code)}", target)


def root_of(specification: dict[str, Any]) -> Path:
    """Mount the overlay that becomes the machine's root."""
    state = Path(specification["state"])
    for name in ("upper", "work", "root"):
        (state / name).mkdir(parents=True, exist_ok=True)
    root = state / "root"
    options = f"lowerdir={specification['lower']},upperdir={state / 'upper'},workdir={state / 'work'}"
    mount("overlay", root, "overlay", 0, options)
    return root


def kernel_file_systems(root: Path) -> None:
    """/proc, /sys with the control groups, /dev, /run, as a freshly booted machine has them."""
    mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", root / "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("/dev", root / "dev", flags=MS_BIND | MS_REC)
    mount("tmpfs", root / "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV)
    mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV)
    mount("tmpfs", root / "tmp", "tmpfs", MS_NOSUID | MS_NODEV)
    (root / "tmp").chmod(0o1777)
    (root / "run/lock").mkdir()
    control_groups(root / "sys/fs/cgroup")


def control_groups(target: Path) -> None:
    """Every hierarchy, mounted from inside the machine's cgroup namespace: the machine's group is their root."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    hierarchies = [line.split(":", 2)[1] for line in lines]
    if hierarchies == [""]:
        mount("cgroup2", target, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        leaf = target / "init"  # a group whose children have controllers holds no process itself
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
        offered = (target / "cgroup.controllers").read_text().split()
        (target / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in offered))
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


def bind(root: Path, source: str, target: str, *, read_only: bool) -> None:
    place = root / target.lstrip("/")
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, place, flags=MS_BIND | MS_REC)
    if read_only:
        mount("none", place, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def pretend(root: Path, files: dict[str, str], trees: dict[str, dict[str, str]]) -> None:
    """Lay files over what the kernel says of processors, memory and the boot."""
    folder = root / "run/pretended"
    folder.mkdir()
    for number, (target, text) in enumerate(files.items()):
        stand_in = folder / str(number)
        stand_in.write_text(text)
        mount(str(stand_in), root / target.lstrip("/"), flags=MS_BIND)
    for target, tree in trees.items():
        place = root / target.lstrip("/")
        mount("tmpfs", place, "tmpfs", 0, "mode=755")
        for path, text in tree.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text)


def become_root(root: Path) -> None:
    old = root / ".old"
    old.mkdir(exist_ok=True)
    os.chdir(root)
    subprocess.run(["pivot_root", ".", ".old"], check=True)
    os.chdir("/")
    if _libc.umount2(b"/.old", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "cannot leave the old root")
    Path("/.old").rmdir()
    mount("none", "/", flags=MS_SHARED | MS_REC)  # volumes that a pod mounts are seen by others, as under systemd


def main() -> None:
    specification = json.loads(Path(sys.argv[1]).read_text())
    subprocess.run(["hostname", specification["hostname"]], check=True)
    root = root_of(specification)
    kernel_file_systems(root)
    for source, target, read_only in specification["mounts"]:
        bind(root, source, target, read_only=read_only)
    pretend(root, specification["files"], specification["trees"])
    become_root(root)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    os.execve("/usr/bin/tini", ["tini", "--", *specification["arguments"]], environment)  # noqa: S606


if __name__ == "__main__":
    main()
