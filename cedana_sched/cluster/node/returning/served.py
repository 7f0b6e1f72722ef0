"""Which return each pod's beginning was given to, on the node's disk: it outlives the agent, and a reboot.

A pod begins anew whenever its restore container is made anew: in another sandbox, after its node has rebooted or its
sandbox has died, or in the same one after it has failed. A return serves one beginning. What serves is written here
before anything is decided for it, so that an agent that is started later finds which beginning that was.
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
    """The pod's beginning that was served is over: another return is for the one that there is now, or comes."""


class Served(msgspec.Struct, frozen=True):
    """A beginning and its return."""

    restore: str
    """Uid of the return."""
    container: str
    sandbox: str
    """See `Beginning`."""


class ServedBeginnings:
    """The latest one of each pod, a file each below `directory`, which is made when it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, pod_uid: str) -> Served | None:
        """None where nothing was decided yet, or by an agent that did not write it down."""
        try:
            return msgspec.json.decode(self._file(pod_uid).read_bytes(), type=Served)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def assign(self, restore_uid: str, pod_uid: str, beginning: Beginning) -> None:
        """Write down that this return serves it; it is on the disk when this returns.

        Raises:
            BegunAgainError: this return serves a beginning of another sandbox.
        """
        known, served = self.of(pod_uid), Served(restore_uid, beginning.container, beginning.sandbox)
        if known == served:
            return
        if known is not None and known.restore == restore_uid and known.sandbox != beginning.sandbox:
            raise BegunAgainError("the pod has begun again meanwhile, in another sandbox")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file(pod_uid), msgspec.json.encode(served))

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """Remove what is written of pods that are no more."""
        for path in self._directory.glob("*"):
            if name_of(path.name) not in pod_uids:
                path.unlink(missing_ok=True)

    def _file(self, pod_uid: str) -> Path:
        return self._directory / segment("pod", pod_uid)
