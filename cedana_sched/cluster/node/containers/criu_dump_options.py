"""Describes a running container to CRIU, such that `runc restore` finds what it expects in the images.

runc's own `checkpoint` cannot stream (see `snapshot.dump`), so this module passes CRIU the options that runc would
(libcontainer, criu_linux.go):

    mnt[DEST]:DEST          every bind mount of the bundle, and on cgroup v1 every mount below /sys/fs/cgroup:
                            the new container brings its own
    mnt[PATH]:/dev/null     masked *files*, which are bind mounts of /dev/null; masked folders are tmpfs of their own
    mnt[/dev/console]       the slave of the container's terminal; see `restoring.console_rebinding`
    net[INODE], pid[INODE]  namespaces of the pod that the container has joined
    descriptors.json        targets of stdin, stdout and stderr: the new container's replace them
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cedana_sched.agent.workload_runtime import RunningContainer
from cedana_sched.cluster.node.containers.bundles import Container, Mount, State
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.mounts import mount_points, resolve_inside, upper_directory

DESCRIPTORS = "descriptors.json"
CONSOLE = "/dev/console"
_JOINED = {"network": ("net", "extRootNetNS"), "pid": ("pid", "extRootPidNS")}
"""Kinds of namespaces that CRIU treats as external, by their name in a bundle, with the key that runc gives them."""


def describe(container: Container, paths: HostPaths, proc: Path = Path("/proc")) -> RunningContainer:
    """Return what CRIU needs of a container.

    Raises:
        FileNotFoundError, ProcessLookupError: it ended meanwhile.
    """
    process = _living_task_folder(proc / str(container.pid))
    mountinfo = (process / "mountinfo").read_bytes().decode(errors="surrogateescape")
    root = container.bundle / "rootfs"
    upper = upper_directory(mountinfo, paths.agent_path(root).stat().st_dev)
    return RunningContainer(
        name=container.name,
        root_pid=container.pid,
        freezer=paths.agent_path(freezer_of(container.state)),
        externals=tuple(dict.fromkeys(_criu_externals(container, process, mountinfo))),
        root=root,
        changes=paths.agent_path(upper) if upper else None,
        notes={DESCRIPTORS: json.dumps(_standard_stream_targets(container.state, process))},
        ext_unix_sk=True,
        has_outside_master=container.specification.process.terminal,
        manage_cgroups="soft",
        is_restored=container.is_restored,
        saves_shared_memory=not any(mount.destination == "/dev/shm" for mount in _bind_mounts(container)),  # noqa: S108
    )


def freezer_of(state: State) -> Path:
    """Return the container's cgroup on the host: that of the v1 freezer, or its only one."""
    return Path(state.cgroup_paths.get("freezer") or state.cgroup_paths[""])


def bind_mounts(container: Container, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the bind mounts of a container: its pod's volumes, and files that the kubelet creates.

    Raises:
        FileNotFoundError, ProcessLookupError: it ended meanwhile.
    """
    return _bind_points(container, _living_task_folder(proc / str(container.pid)))


def mount_points_of(container: Container, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return all mount points of a container, also those that its processes have made.

    Raises:
        FileNotFoundError, ProcessLookupError: it ended meanwhile.
    """
    process = _living_task_folder(proc / str(container.pid))
    return tuple(mount_points((process / "mountinfo").read_bytes().decode(errors="surrogateescape")))


def _bind_points(container: Container, process: Path) -> tuple[str, ...]:
    root = process / "root"
    return tuple(resolve_inside(root, mount.destination) for mount in _bind_mounts(container))


def _living_task_folder(process: Path) -> Path:
    """Return the /proc folder that shows a process's mounts, files and namespaces.

    It is another thread's if the first thread has exited.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has exited.
    """
    if _shows_mounts(process):
        return process
    for thread in (process / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has exited meanwhile
            if _shows_mounts(thread):
                return thread
    raise ProcessLookupError(f"process {process.name} has ended")


def _shows_mounts(task: Path) -> bool:
    """Return whether a task shows its mounts: for a zombie the kernel returns EINVAL."""
    try:
        (task / "mountinfo").open("rb").close()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _criu_externals(container: Container, process: Path, mountinfo: str) -> Iterator[str]:
    root = process / "root"
    points = list(mount_points(mountinfo))
    for place in _bind_points(container, process):
        yield f"mnt[{place}]:{place}"
    for point in points:
        if point.startswith("/sys/fs/cgroup/"):
            yield f"mnt[{point}]:{point}"
    for path in container.specification.linux.masked_paths:
        if path in points and not (root / path.lstrip("/")).is_dir():
            yield f"mnt[{path}]:/dev/null"
    if container.specification.process.terminal and CONSOLE in points:
        yield f"mnt[{CONSOLE}]:{CONSOLE}"
    for namespace in container.specification.linux.namespaces:
        if namespace.path and namespace.type in _JOINED:
            kind, key = _JOINED[namespace.type]
            yield f"{kind}[{(process / 'ns' / kind).stat().st_ino}]:{key}"


def _bind_mounts(container: Container) -> Iterator[Mount]:
    return (mount for mount in container.specification.mounts if mount.type == "bind")


def _standard_stream_targets(state: State, process: Path) -> list[str]:
    """Return the targets of descriptors 0 to 2.

    If the first process has closed a pipe, other processes may still have it open: the target at its start counts.
    """
    started = state.external_descriptors or ()
    found = []
    for number in range(3):
        try:
            target = str((process / "fd" / str(number)).readlink())
        except FileNotFoundError:
            target = ""
        if not target.startswith("pipe:") and number < len(started):
            target = started[number]
        found.append(target)
    return found
