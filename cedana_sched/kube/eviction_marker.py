"""Writes eviction marks on pods, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.resources import PODS
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark, refreshed_mark, serialized_mark

log = structlog.get_logger(__name__)

WRITERS = 8


class EvictionMarker:
    """The process's writer of eviction marks. Run `run` as a task.

    A failed write is not retried: the client repeats the eviction.

    Args:
        now: the time of day.
        key: the annotation to write.
    """

    def __init__(self, api: Api, now: Callable[[], datetime], key: str = names.EVICTION_REQUESTED) -> None:
        self._api = api
        self._now = now
        self._key = key
        self._waiting: asyncio.Queue[tuple[Metadata, EvictionMark]] = asyncio.Queue()
        self._under_way: set[str] = set()

    def enqueue_mark(self, pod: Metadata, by: str, *, cause: str = "", budget: str = "") -> None:
        """Queue the mark of a pod, read from the API server, that the user `by` wants to evict: see `EvictionMark`.

        A pod without uid or resourceVersion is not marked: the precondition would be empty.
        """
        if not pod.uid or not pod.resource_version or pod.uid in self._under_way:
            return
        earlier = read_mark(pod.annotations, self._key)
        if (mark := refreshed_mark(earlier, by, self._now(), cause=cause, budget=budget)) is not None:
            self._under_way.add(pod.uid)
            self._waiting.put_nowait((pod, mark))

    async def run(self) -> None:
        """Write queued marks, forever."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._write_all(), name=f"eviction marks {number}")

    async def _write_all(self) -> None:
        while True:
            pod, mark = await self._waiting.get()
            try:
                await self._write(pod, mark)
            finally:
                self._under_way.discard(pod.uid)

    async def _write(self, pod: Metadata, mark: EvictionMark) -> None:
        # the resourceVersion is a precondition: of several replicas, only one writes
        seen = {"uid": pod.uid, "resourceVersion": pod.resource_version}
        patch = {"metadata": {**seen, "annotations": {self._key: serialized_mark(mark)}}}
        try:
            await self._api.patch(PODS, pod.name, pod.namespace, patch)
        except (AbsentError, ConflictError) as error:
            log.debug("eviction not marked", namespace=pod.namespace, pod=pod.name, error=error.message)
        except ApiError as error:
            log.warning("eviction not marked", namespace=pod.namespace, pod=pod.name, error=error.message)
