"""Removes our finalizer from all Checkpoints: no other component would, and their namespaces could not be deleted."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ConflictError
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.objects import names

log = structlog.get_logger(__name__)

WRITES_AT_ONCE = 32


async def remove_finalizers(api: Api) -> None:
    """Remove our finalizer from all Checkpoints. Their snapshots stay.

    Raises:
        ApiError: the API server refused to list them.
        ExceptionGroup: it refused to change some; call again to continue.
    """
    found, _ = await api.list_all(CHECKPOINTS, None, into=PartialObject)
    writes = asyncio.Semaphore(WRITES_AT_ONCE)

    async def release(one: PartialObject) -> None:
        async with writes:
            await _remove_finalizer(api, one)

    kept = [one for one in found if names.SNAPSHOT_CLEANUP in one.metadata.finalizers]
    async with asyncio.TaskGroup() as group:
        for one in kept:
            group.create_task(release(one), name=f"release of {one.metadata.namespace}/{one.metadata.name}")
    log.info("checkpoints are kept back no more; their snapshots stay", checkpoints=len(kept))


async def _remove_finalizer(api: Api, one: PartialObject | None) -> None:
    while one is not None and names.SNAPSHOT_CLEANUP in one.metadata.finalizers:
        metadata = one.metadata
        others = [name for name in metadata.finalizers if name != names.SNAPSHOT_CLEANUP]
        patch = {"metadata": {"finalizers": others, "resourceVersion": metadata.resource_version}}
        try:
            await api.patch(CHECKPOINTS, metadata.name, metadata.namespace, patch)
        except AbsentError:
            return
        except ConflictError:  # it has changed since
            one = await api.find(CHECKPOINTS, metadata.name, metadata.namespace, into=PartialObject)
        else:
            return
