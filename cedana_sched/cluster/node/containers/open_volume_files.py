"""Files of volumes that the processes of a frozen container have open, recorded for the restore.

Two records: `volume_file_comparison` has all that must be the same file again; `outside_files` those of volumes that
outlive the pod, and so may have run ahead of the snapshot by then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from cedana_sched.cluster.node.containers.bundles import SANDBOX_ID, Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import bind_mounts, freezer_of, mount_points_of
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES, outside_files_of, unknown_outside_files
from cedana_sched.runtime_handler.outside_files import encode as encode_outside_files
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, encode, volume_files_of
from cedana_sched.snapshot import freezer

_VOLUMES, _SUBPATHS = "volumes", "volume-subpaths"
_OF_ONE_POD = tuple(
    f"kubernetes.io~{kind}" for kind in ("empty-dir", "configmap", "secret", "projected", "downward-api")
)
"""Folders of volumes that end with their pod: saved with it, or written by the kubelet anew."""


def volume_files_note(container: Container, paths: HostPaths, most_bytes: int) -> dict[str, str]:
    """Return a note to store beside the container's images, of at most so many bytes.

    Raises:
        OSError: the container is gone, or cannot be read.
        ValueError: its processes have more files open than the note can hold.
    """
    members = freezer.pids_in_cgroup(paths.agent_path(freezer_of(container.state)))
    return {VOLUME_FILES: encode(volume_files_of(members, bind_mounts(container), most_bytes))}


def outside_files_note(container: Container, pod_uid: str, paths: HostPaths, most_bytes: int) -> dict[str, str]:
    """Return a note of the files in volumes that outlive the pod; if they cannot be recorded, it says so.

    Args:
        container: frozen.
        pod_uid: of its pod.
        paths: of the host.
        most_bytes: bound of the note.

    Raises:
        OSError: the container's processes cannot be read.
    """
    members = freezer.pids_in_cgroup(paths.agent_path(freezer_of(container.state)))
    try:
        files = outside_files_of(members, _outside_test(container, pod_uid, paths), most_bytes)
    except (OSError, ValueError) as error:
        files = unknown_outside_files(error)
    return {OUTSIDE_FILES: encode_outside_files(files)}


def _outside_test(container: Container, pod_uid: str, paths: HostPaths) -> Callable[[str], bool]:
    """Return whether a path in the container is in a volume that outlives the pod: the innermost mount counts."""
    binds = (mount for mount in container.specification.mounts if mount.type == "bind")
    sandbox = container.specification.annotations.get(SANDBOX_ID, "")
    outlasting = {
        point: outlives_pod(Path(mount.source), sandbox, pod_uid, paths)
        for point, mount in zip(bind_mounts(container), binds, strict=True)
    }
    inner = dict.fromkeys(mount_points_of(container), False) | outlasting

    def is_outside(path: str) -> bool:
        place = PurePosixPath(path)
        return next((inner[str(one)] for one in (place, *place.parents) if str(one) in inner), False)

    return is_outside


def outlives_pod(source: Path, sandbox: str, pod_uid: str, paths: HostPaths) -> bool:
    """Return whether the source of a bind mount on the host is neither saved with its pod nor made anew for each."""
    if not source.is_absolute() or source.parent.name == sandbox:
        return False  # containerd's files of the sandbox: its host name, resolver and shared memory
    folder = paths.pod_folder(pod_uid)
    try:
        first, *rest = paths.agent_path(source).relative_to(folder).parts
    except ValueError:
        return True  # of the host
    if first == _VOLUMES:
        return bool(rest) and rest[0] not in _OF_ONE_POD
    if first == _SUBPATHS:
        return bool(rest) and not any((folder / _VOLUMES / kind / rest[0]).exists() for kind in _OF_ONE_POD)
    return False  # its /etc/hosts, and the messages of its containers
