"""Shows the restore containers of this node that an agent is here: one that sees none for long ends, and is told of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.sidecar import RestoreContainer
from cedana_sched.kube.objects import Pod
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_CONTAINER

EVERY_SECONDS = 30.0
"""A restore container has the patience of many of these (`runtime.wait.SILENT_SECONDS`)."""


async def show_life(pods: Iterable[Pod], places: Places, every_seconds: float = EVERY_SECONDS) -> None:
    """Show it to every pod whose restore container runs, for ever."""
    while True:
        for pod in pods:
            if waits(pod):
                with contextlib.suppress(RestoreError):  # it ends just now
                    await asyncio.to_thread(RestoreContainer(pod.metadata.uid, places).show_life)
        await asyncio.sleep(every_seconds)


def waits(pod: Pod) -> bool:
    """Whether the pod's restore container runs, as far as the API server knows."""
    return any(one.name == RESTORE_CONTAINER and one.running for one in pod.status.init_container_statuses)
