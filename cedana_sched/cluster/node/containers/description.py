"""A running container as CRIU must see it, and as `runc restore` expects to find it in the images.

runc's own `checkpoint` cannot stream (see `snapshot.dump`), so this says to CRIU what runc would (libcontainer,
criu_linux.go):

    mnt[DEST]:DEST          every bind mount of the bundle, and on cgroup v1 every mount below /sys/fs/cgroup:
                            the new container brings its own
    mnt[PATH]:/dev/null     masked *files*, which are bind mounts of /dev/null; masked folders are tmpfs of their own
    net[INODE], pid[INODE]  namespaces of the pod that the container has joined
    descriptors.json        what stdin, stdout and stderr led to: the new container's take their places
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cedana_sched.agent.runtime import RunningContainer
from cedana_sched.cluster.node.containers.bundles import Container, Mount, State
from cedana_sched.cluster.node.containers.mounts import mount_points, resolve_inside, upper_directory
from cedana_sched.cluster.node.containers.places import Places

DESCRIPTORS = "descriptors.json"
_JOINED = {"network": ("net", "extRootNetNS"), "pid": ("pid", "extRootPidNS")}
"""Kinds of namespaces that CRIU leaves to others, by their name in a bundle, with the key that runc gives them."""


def describe(container: Container, places: Places, proc: Path = Path("/proc")) -> RunningContainer:
    """What CRIU needs of it.

    Raises:
        FileNotFoundError, ProcessLookupError: it ended meanwhile.
    """
    process = _living(proc / str(container.pid))
    mountinfo = (process / "mountinfo").read_bytes().decode(errors="surrogateescape")
    root = container.bundle / "rootfs"
    upper = upper_directory(mountinfo, places.here(root).stat().st_dev)
    return RunningContainer(
        name=container.name,
        root_pid=container.pid,
        freezer=places.here(freezer_of(container.state)),
        externals=tuple(dict.fromkeys(_externals(container, process, mountinfo))),
        root=root,
        changes=places.here(upper) if upper else None,
        notes={DESCRIPTORS: json.dumps(_descriptors(container.state, process))},
        ext_unix_sk=True,
        manage_cgroups="soft",
        continued=container.continued,
        saves_shared_memory=not any(mount.destination == "/dev/shm" for mount in _binds(container)),  # noqa: S108
    )


def freezer_of(state: State) -> Path:
    """The container's cgroup on the host: that of the v1 freezer, or its only one."""
    return Path(state.cgroup_paths.get("freezer") or state.cgroup_paths[""])


def bind_mounts(container: Container, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Where a container has what is not its own: its pod's volumes, and files that the kubelet makes.

    Raises:
        FileNotFoundError, ProcessLookupError: it ended meanwhile.
    """
    return _bind_points(container, _living(proc / str(container.pid)))


def _bind_points(container: Container, process: Path) -> tuple[str, ...]:
    root = process / "root"
    return tuple(resolve_inside(root, mount.destination) for mount in _binds(container))


def _living(process: Path) -> Path:
    """Where it shows its mounts, files and namespaces: at another thread, where its first one has ended.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    if _shows_mounts(process):
        return process
    for thread in (process / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if _shows_mounts(thread):
                return thread
    raise ProcessLookupError(f"process {process.name} has ended")


def _shows_mounts(task: Path) -> bool:
    """The kernel says EINVAL of one that has ended, and that nobody has waited for."""
    try:
        (task / "mountinfo").open("rb").close()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _externals(container: Container, process: Path, mountinfo: str) -> Iterator[str]:
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
    for namespace in container.specification.linux.namespaces:
        if namespace.path and namespace.type in _JOINED:
            kind, key = _JOINED[namespace.type]
            yield f"{kind}[{(process / 'ns' / kind).stat().st_ino}]:{key}"


def _binds(container: Container) -> Iterator[Mount]:
    return (mount for mount in container.specification.mounts if mount.type == "bind")


def _descriptors(state: State, process: Path) -> list[str]:
    """By number. Where the first process has given up a pipe, others may still hold it: as when it was started."""
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
