"""Holds connections between the containers of a pod while they are restored one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.loopback import cut_loopback, mend_loopback, unlock
from cedana_sched.snapshot.toolchain import Toolchain

log = structlog.get_logger(__name__)

_OWN = Path("/proc/self/ns/net")


class PodConnections:
    """The connections of this node's pods; see `snapshot.loopback`. Calls block for some milliseconds."""

    def __init__(self, places: Places, toolchain: Toolchain) -> None:
        self._bundles = Bundles(places)
        self._toolchain = toolchain

    def hold(self, pod_uid: str, containers: Collection[str]) -> None:
        """Hold the connections; not needed for a pod's only container, whose connections to itself CRIU holds.

        Raises:
            SnapshotError: the kernel refuses.
        """
        if len(containers) > 1 and (namespace := self._namespace(pod_uid)):
            cut_loopback(self._toolchain, namespace)

    def release(self, pod_uid: str, containers: Collection[str]) -> None:
        """Release the connections; idempotent, and no error if the pod has ended.

        Raises:
            SnapshotError: the kernel refuses.
        """
        if len(containers) > 1:
            self._in_network(pod_uid, mend_loopback)

    def unlock(self, pod_uid: str) -> None:
        """Unlock the network of a pod that was not restored: a CRIU that fails leaves it locked.

        Raises:
            SnapshotError: the kernel refuses.
        """
        self._in_network(pod_uid, unlock)

    def _in_network(self, pod_uid: str, do: Callable[[Toolchain, Path], None]) -> None:
        if namespace := self._namespace(pod_uid):
            try:
                do(self._toolchain, namespace)
            except SnapshotError:
                if self._namespace(pod_uid):
                    raise
                log.debug("pod ended meanwhile", pod=pod_uid)

    def _namespace(self, pod_uid: str) -> Path | None:
        """Return None for pods that have ended, or that are on the host network."""
        pid = self._bundles.sandbox(pod_uid)
        if pid is None:
            return None
        path = Path(f"/proc/{pid}/ns/net")
        try:
            return None if path.stat().st_ino == _OWN.stat().st_ino else path
        except (FileNotFoundError, ProcessLookupError):
            return None
