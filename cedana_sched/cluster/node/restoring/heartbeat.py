"""Touches a file for each restore container of this node every 30 s; a container without one for 15 min exits (75).

Then the container's pod shows that no agent is on the node, and the kubelet restarts the container
(`cedana_sched.runtime_handler.wait`).
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.model.errors import RestoreError

log = structlog.get_logger(__name__)

EVERY_SECONDS = 30.0
"""A restore container tolerates many missing heartbeats (`runtime_handler.wait.SILENT_SECONDS`)."""


async def send_heartbeats(paths: HostPaths, every_seconds: float = EVERY_SECONDS) -> None:
    """Send heartbeats to every running restore container until cancelled; the kubelet may not publish that it runs."""
    bundles = Bundles(paths)
    while True:
        try:
            for pod_uid in await asyncio.to_thread(bundles.running_incarnations):
                with contextlib.suppress(RestoreError):  # it is just exiting
                    await asyncio.to_thread(RestoreContainerMessages(pod_uid, paths).write_heartbeat)
        except Exception:  # a defect in one pod must not end the agent
            log.exception("heartbeat not written")
        await asyncio.sleep(every_seconds)
