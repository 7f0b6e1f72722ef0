"""Which files of volumes the processes of a frozen container hold, for who continues them."""

from __future__ import annotations

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.description import bind_mounts, freezer_of
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.runtime.volume_files import VOLUME_FILES, encode, files_of
from cedana_sched.snapshot import freezer


def volume_files_note(container: Container, places: Places, most_bytes: int) -> dict[str, str]:
    """A note that travels beside its images, of so many bytes at most.

    Raises:
        OSError: it is gone, or cannot be read.
        ValueError: they hold more files than can be written down.
    """
    members = freezer.members(places.here(freezer_of(container.state)))
    return {VOLUME_FILES: encode(files_of(members, bind_mounts(container), most_bytes))}
