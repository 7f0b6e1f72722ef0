"""What dies with a pod, and lies in none of its containers: its emptyDir volumes, and its shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.model.objects import names

SHARED_MEMORY = "_shm"
"""The name under which the pod's /dev/shm travels. No volume can be called so: theirs are DNS labels."""
_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108


def volumes_of(pod_uid: str, containers: Iterable[Container], places: Places) -> dict[str, Path]:
    """The folders by the names under which they travel, as the agent sees them."""
    directory = places.here(places.pods) / pod_uid / _EMPTY_DIRS
    found = {path.name: path for path in sorted(directory.iterdir())} if directory.exists() else {}
    found.pop(names.RESTORE_VOLUME, None)
    shared = {Path(mount.source) for container in containers for mount in container.specification.mounts
              if mount.destination == _SHARED_MEMORY and mount.type == "bind"}  # fmt: skip
    for source in shared - {Path(_SHARED_MEMORY)}:  # which is the host's own, for pods with its IPC namespace
        if not source.is_relative_to(places.pods):  # a volume of the pod mounted there is none of the sandbox's
            found[SHARED_MEMORY] = places.here(source)
    return found
