"""What dies with a pod, and lies in none of its containers: its emptyDir volumes, and its shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cedana_sched.cluster.node.containers.bundles import SANDBOX_ID, Container, Specification
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.model.objects import names

SHARED_MEMORY = "_shm"
"""The name under which the pod's /dev/shm travels. No volume can be called so: theirs are DNS labels."""
_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108


def volumes_of(pod_uid: str, containers: Iterable[Container], places: Places) -> dict[str, Path]:
    """The folders by the names under which they travel, as the agent sees them."""
    directory = places.pod(pod_uid) / _EMPTY_DIRS
    found = {path.name: path for path in sorted(directory.iterdir())} if directory.exists() else {}
    found.pop(names.RESTORE_VOLUME, None)
    for container in containers:
        if (source := shared_memory_of(container.specification)) is not None:
            found[SHARED_MEMORY] = places.here(source)
    return found


def shared_memory_of(specification: Specification) -> Path | None:
    """The /dev/shm on the host of a container's sandbox; None where the container has another one.

    containerd makes one for each sandbox, in a folder called after it (`getSandboxDevShm` in its internal/cri/server).
    A pod with the host's IPC namespace has the host's, and whoever writes a pod may have a volume mounted there.
    """
    sandbox = specification.annotations.get(SANDBOX_ID, "")
    for mount in specification.mounts:
        source = Path(mount.source)
        if mount.destination == _SHARED_MEMORY and mount.type == "bind" and source.parent.name == sandbox:
            return source
    return None
