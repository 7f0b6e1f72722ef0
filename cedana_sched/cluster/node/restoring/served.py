"""Record of the Restore that serves each pod's incarnation, on the node's disk: it outlives the agent, and a reboot.

A new incarnation of a pod begins whenever its restore container is created again: in another sandbox, after its node
has rebooted or its sandbox has died, or in the same one after the restore container has failed. A Restore serves one
incarnation. The record is written before anything is decided for the incarnation, so that a restarted agent finds it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from cedana_sched.cluster.node.containers.bundles import Beginning
from cedana_sched.model.errors import RestoreError, RetryableError
from cedana_sched.model.segments import segment
from cedana_sched.runtime.whole import name_of, write_whole


class BegunAgainError(RestoreError, RetryableError):
    """The served incarnation of the pod has ended: another Restore is, or will be, for the present one."""


class Served(msgspec.Struct, frozen=True):
    """An incarnation and its Restore."""

    restore: str
    """Uid of the Restore."""
    container: str
    sandbox: str
    """See `Beginning`."""


class ServedBeginnings:
    """The latest record of each pod, one file each below `directory`, which is created if missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, pod_uid: str) -> Served | None:
        """Return the record; None if nothing is decided yet, or by an agent that did not record it."""
        try:
            return msgspec.json.decode(self._file(pod_uid).read_bytes(), type=Served)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def assign(self, restore_uid: str, pod_uid: str, beginning: Beginning) -> None:
        """Record that this Restore serves the incarnation; the record is on disk when this returns.

        Raises:
            BegunAgainError: this Restore serves an incarnation in another sandbox.
        """
        known, served = self.of(pod_uid), Served(restore_uid, beginning.container, beginning.sandbox)
        if known == served:
            return
        if known is not None and known.restore == restore_uid and known.sandbox != beginning.sandbox:
            raise BegunAgainError("the pod has begun again meanwhile, in another sandbox")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file(pod_uid), msgspec.json.encode(served))

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """Remove the records of pods that no longer exist."""
        for path in self._directory.glob("*"):
            if name_of(path.name) not in pod_uids:
                path.unlink(missing_ok=True)

    def _file(self, pod_uid: str) -> Path:
        return self._directory / segment("pod", pod_uid)
