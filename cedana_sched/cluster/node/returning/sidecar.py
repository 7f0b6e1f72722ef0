"""What the agent says to a pod's restore container, by files in the volume that they share.

The kubelet mounts that volume before it starts the container; what is written before lies below the mount, unseen. So
the agent waits for the file `waiting`, which the container writes. The pod's own processes may reach the volume, too,
if its author mounts it: no link in it is followed.
"""

from __future__ import annotations

import os
import secrets
import stat
from typing import Self

from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.files import appears
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_VOLUME
from cedana_sched.runtime.wait import DECISION, PROGRESS, WAITING

_VOLUMES = "volumes/kubernetes.io~empty-dir"
_READY = "plugins/kubernetes.io~empty-dir/{volume}/ready"
"""Written by the kubelet once an emptyDir is mounted (pkg/volume/emptydir)."""


class RestoreContainer:
    """The restore container of one pod."""

    def __init__(self, pod_uid: str, places: Places) -> None:
        pod = places.here(places.pods) / pod_uid
        self._volume = pod / _VOLUMES / RESTORE_VOLUME
        self._mounted = pod / _READY.format(volume=RESTORE_VOLUME)

    async def waits(self) -> None:
        """Return when the container runs: all volumes of its pod are mounted by then."""
        await appears(self._mounted)
        await appears(self._volume / WAITING)

    def decide(self, decision: str, why: str) -> None:
        """End it: `restore` and `cold` let the pod go on.

        Raises:
            RestoreError: the volume is gone, and so is the pod.
        """
        name = f".{DECISION}.{secrets.token_hex(8)}"
        with self._open_volume() as volume:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=volume.number)
            with os.fdopen(file, "w", encoding="utf-8") as written:
                written.write(f"{decision}\n{why}\n")
            os.rename(name, DECISION, src_dir_fd=volume.number, dst_dir_fd=volume.number)

    def tell(self, line: str) -> None:
        """Have it print a line, if it waits.

        Raises:
            RestoreError: the volume is gone, and so is the pod.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with self._open_volume() as volume:
            try:
                file = os.open(PROGRESS, flags, 0o644, dir_fd=volume.number)
            except OSError as error:
                raise RestoreError(f"the restore container's {PROGRESS} is not what it should be: {error}") from error
            with os.fdopen(file, "w", encoding="utf-8") as written:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    written.write(f"{line}\n")

    def _open_volume(self) -> _Folder:
        try:
            return _Folder(os.open(self._volume, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW))
        except OSError as error:
            raise RestoreError(f"the pod's volume {RESTORE_VOLUME} is not there: {error.strerror}") from error


class _Folder:
    """An open folder, closed at the end of the block."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)
