"""Pod state outside of its containers that is deleted with the pod: emptyDir volumes and shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cedana_sched.cluster.node.containers.bundles import SANDBOX_ID, Container, Specification
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.model.objects import names

SHARED_MEMORY = "_shm"
"""Name of the pod's /dev/shm in a snapshot. No volume can have this name: volume names are DNS labels."""
_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108


def volumes_of(pod_uid: str, containers: Iterable[Container], paths: HostPaths) -> dict[str, Path]:
    """Return the folders by their names in the snapshot, as the agent sees them."""
    directory = paths.pod_folder(pod_uid) / _EMPTY_DIRS
    found = {path.name: path for path in sorted(directory.iterdir())} if directory.exists() else {}
    found.pop(names.RESTORE_VOLUME, None)
    for container in containers:
        if (source := shared_memory_of(container.specification)) is not None:
            found[SHARED_MEMORY] = paths.agent_path(source)
    return found


def shared_memory_of(specification: Specification) -> Path | None:
    """Return the /dev/shm on the host of a container's sandbox; None if the container has another one.

    containerd creates one for each sandbox, in a folder named after it (`getSandboxDevShm` in its internal/cri/server).
    A pod with the host's IPC namespace has the host's, and the author of a pod may mount a volume there.
    """
    sandbox = specification.annotations.get(SANDBOX_ID, "")
    for mount in specification.mounts:
        source = Path(mount.source)
        if mount.destination == _SHARED_MEMORY and mount.type == "bind" and source.parent.name == sandbox:
            return source
    return None
