"""Shows the restore containers of this node that an agent is here: one that sees none for long ends, and is told of."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.sidecar import RestoreContainer
from cedana_sched.model.errors import RestoreError

log = structlog.get_logger(__name__)

EVERY_SECONDS = 30.0
"""A restore container has the patience of many of these (`runtime.wait.SILENT_SECONDS`)."""


async def show_life(places: Places, every_seconds: float = EVERY_SECONDS) -> None:
    """Show it to every restore container that runs, for ever; its kubelet may not publish that it does."""
    bundles = Bundles(places)
    while True:
        try:
            for pod_uid in await asyncio.to_thread(bundles.beginnings):
                with contextlib.suppress(RestoreError):  # it ends just now
                    await asyncio.to_thread(RestoreContainer(pod_uid, places).show_life)
        except Exception:  # a defect that one pod shows must not end the agent
            log.exception("sign of life not shown")
        await asyncio.sleep(every_seconds)
