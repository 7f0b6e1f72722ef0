"""Files of volumes that the processes of a frozen container have open, recorded for the restore."""

from __future__ import annotations

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.description import bind_mounts, freezer_of
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.runtime.volume_files import VOLUME_FILES, encode, files_of
from cedana_sched.snapshot import freezer


def volume_files_note(container: Container, places: Places, most_bytes: int) -> dict[str, str]:
    """Return a note to store beside the container's images, of at most so many bytes.

    Raises:
        OSError: the container is gone, or cannot be read.
        ValueError: its processes have more files open than the note can hold.
    """
    members = freezer.members(places.here(freezer_of(container.state)))
    return {VOLUME_FILES: encode(files_of(members, bind_mounts(container), most_bytes))}
