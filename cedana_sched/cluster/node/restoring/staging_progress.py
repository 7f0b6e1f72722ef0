"""Staging progress of a pod's snapshot, as lines in the log of its restore container."""

from __future__ import annotations

import contextlib
import threading
import time

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.model.errors import RestoreError

EVERY_SECONDS = 2.0
_MIB = 1 << 20


class StagingProgress:
    """Thread-safe; writes at most one line per pod in `EVERY_SECONDS`, and the last one."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._reported_at: dict[str, float] = {}

    def print_progress(self, pod_uid: str, done_bytes: int, total_bytes: int) -> None:
        """Print progress in the pod's log, unless its restore container does not run yet."""
        now = time.monotonic()
        is_done = done_bytes >= total_bytes
        with self._lock:
            if not is_done and now - self._reported_at.get(pod_uid, 0.0) < EVERY_SECONDS:
                return
            self._reported_at[pod_uid] = now
            if is_done:
                del self._reported_at[pod_uid]
        line = f"{done_bytes / _MIB:.0f} of {total_bytes / _MIB:.0f} MiB of the snapshot are on this node"
        with contextlib.suppress(RestoreError):  # its volume is not mounted yet: there is no reader
            RestoreContainerMessages(pod_uid, self._paths).print_line(line)
