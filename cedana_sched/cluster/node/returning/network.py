"""Connections between the containers of a pod, held while one container after the other comes back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.loopback import cut_loopback, mend_loopback
from cedana_sched.snapshot.toolchain import Toolchain

log = structlog.get_logger(__name__)

_OWN = Path("/proc/self/ns/net")


class PodConnections:
    """Of the pods of this node; see `snapshot.loopback`. Calls block for some milliseconds."""

    def __init__(self, places: Places, toolchain: Toolchain) -> None:
        self._bundles = Bundles(places)
        self._toolchain = toolchain

    def hold(self, pod_uid: str, containers: Collection[str]) -> None:
        """Hold them; the only container of a pod needs nothing, and CRIU holds its connections to itself.

        Raises:
            SnapshotError: the kernel refuses.
        """
        if namespace := self._namespace(pod_uid, containers):
            cut_loopback(self._toolchain, namespace)

    def release(self, pod_uid: str, containers: Collection[str]) -> None:
        """Let them go on; nothing happens if they do, or the pod has ended.

        Raises:
            SnapshotError: the kernel refuses.
        """
        if namespace := self._namespace(pod_uid, containers):
            try:
                mend_loopback(self._toolchain, namespace)
            except SnapshotError:
                if self._namespace(pod_uid, containers):
                    raise
                log.debug("pod ended while its connections were held", pod=pod_uid)

    def _namespace(self, pod_uid: str, containers: Collection[str]) -> Path | None:
        """None for pods of one container, that have ended, or that are in the node's own network."""
        pid = self._bundles.sandbox(pod_uid) if len(containers) > 1 else None
        if pid is None:
            return None
        path = Path(f"/proc/{pid}/ns/net")
        try:
            return None if path.stat().st_ino == _OWN.stat().st_ino else path
        except (FileNotFoundError, ProcessLookupError):
            return None
