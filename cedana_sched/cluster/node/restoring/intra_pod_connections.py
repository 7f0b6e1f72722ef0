"""Holds connections between the containers of a pod while they are restored one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.loopback_blocking import block_loopback_tcp, remove_criu_tables, unblock_loopback_tcp

log = structlog.get_logger(__name__)

_OWN = Path("/proc/self/ns/net")


class IntraPodConnections:
    """The connections of this node's pods; see `snapshot.loopback_blocking`. Calls block for some milliseconds."""

    def __init__(self, paths: HostPaths, toolchain: Toolchain) -> None:
        self._bundles = Bundles(paths)
        self._toolchain = toolchain

    def hold(self, pod_uid: str, containers: Collection[str]) -> None:
        """Hold the connections; not needed for a pod's only container, whose connections to itself CRIU holds.

        Raises:
            SnapshotError: the kernel refuses.
        """
        if len(containers) > 1 and (namespace := self._network_namespace_of(pod_uid)):
            block_loopback_tcp(self._toolchain, namespace)

    def release(self, pod_uid: str, containers: Collection[str]) -> None:
        """Release the connections; idempotent, and no error if the pod has ended.

        Raises:
            SnapshotError: the kernel refuses.
        """
        if len(containers) > 1:
            self._apply_to_network(pod_uid, unblock_loopback_tcp)

    def unlock_network(self, pod_uid: str) -> None:
        """Unlock the network of a pod that was not restored: a CRIU that fails leaves it locked.

        Raises:
            SnapshotError: the kernel refuses.
        """
        self._apply_to_network(pod_uid, remove_criu_tables)

    def _apply_to_network(self, pod_uid: str, do: Callable[[Toolchain, Path], None]) -> None:
        if namespace := self._network_namespace_of(pod_uid):
            try:
                do(self._toolchain, namespace)
            except SnapshotError:
                if self._network_namespace_of(pod_uid):
                    raise
                log.debug("pod ended meanwhile", pod=pod_uid)

    def _network_namespace_of(self, pod_uid: str) -> Path | None:
        """Return None for pods that have ended, or that are on the host network."""
        pid = self._bundles.sandbox_pid(pod_uid)
        if pid is None:
            return None
        path = Path(f"/proc/{pid}/ns/net")
        try:
            return None if path.stat().st_ino == _OWN.stat().st_ino else path
        except (FileNotFoundError, ProcessLookupError):
            return None
