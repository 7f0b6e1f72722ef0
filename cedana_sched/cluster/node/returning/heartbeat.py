"""Touches a file for each restore container of this node every 30 s; one that sees none for 15 min exits (75).

Then its pod shows that no agent is on the node, and the kubelet starts it again (`cedana_sched.runtime.wait`).
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.restore_container import RestoreContainer
from cedana_sched.model.errors import RestoreError

log = structlog.get_logger(__name__)

EVERY_SECONDS = 30.0
"""A restore container outlasts many that are missing (`runtime.wait.SILENT_SECONDS`)."""


async def send_heartbeats(places: Places, every_seconds: float = EVERY_SECONDS) -> None:
    """Send one to every restore container that runs, for ever; its kubelet may not publish that it does."""
    bundles = Bundles(places)
    while True:
        try:
            for pod_uid in await asyncio.to_thread(bundles.beginnings):
                with contextlib.suppress(RestoreError):  # it ends just now
                    await asyncio.to_thread(RestoreContainer(pod_uid, places).write_heartbeat)
        except Exception:  # a defect that one pod shows must not end the agent
            log.exception("heartbeat not written")
        await asyncio.sleep(every_seconds)
