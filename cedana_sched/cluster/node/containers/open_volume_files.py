"""Files of volumes that the processes of a frozen container have open, recorded for the restore."""

from __future__ import annotations

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import bind_mounts, freezer_of
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, encode, volume_files_of
from cedana_sched.snapshot import freezer


def volume_files_note(container: Container, paths: HostPaths, most_bytes: int) -> dict[str, str]:
    """Return a note to store beside the container's images, of at most so many bytes.

    Raises:
        OSError: the container is gone, or cannot be read.
        ValueError: its processes have more files open than the note can hold.
    """
    members = freezer.pids_in_cgroup(paths.agent_path(freezer_of(container.state)))
    return {VOLUME_FILES: encode(volume_files_of(members, bind_mounts(container), most_bytes))}
