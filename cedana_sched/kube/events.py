"""Events in plain words on the objects that people look at. They never delay, and never fail, what they tell of."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from datetime import UTC, datetime

import msgspec
import structlog

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.reading import Unreadable
from cedana_sched.kube.resources import EVENTS, Resource

log = structlog.get_logger(__name__)

UNREADABLE = "Unreadable"
"""Reason of an Event on an object that is not what its kind says."""
QUEUE_LENGTH = 1_000
SAME_SECONDS = 600.0
"""An Event that was told within this time is counted, not told again."""
REMEMBERED = 4_096


class Happening(msgspec.Struct, frozen=True):
    """What happened to an object. `involved` is an ObjectReference; `reason` is one CamelCase word."""

    involved: dict[str, str]
    reason: str
    message: str
    warning: bool = False


class EventRecorder:
    """Writes Events in the background; when the API server is too slow, the oldest are dropped, and that is logged.

    Args:
        api: with the right to create and patch Events.
        component: who says it, as `kubectl describe` shows under FROM.
        namespace: where Events on objects without a namespace go.
    """

    def __init__(self, api: Api, component: str, namespace: str = "default") -> None:
        self._api = api
        self._component = component
        self._namespace = namespace
        self._queue: asyncio.Queue[Happening] = asyncio.Queue(QUEUE_LENGTH)
        self._told: OrderedDict[tuple[str, ...], tuple[str, int, float]] = OrderedDict()

    def tell(self, happening: Happening) -> None:
        """Have it told; returns at once."""
        if self._queue.full():
            dropped = self._queue.get_nowait()
            log.warning("event dropped", reason=dropped.reason, message=dropped.message)
        self._queue.put_nowait(happening)

    def unreadable(self, resource: Resource, one: Unreadable) -> None:
        """Have it told on an object that it cannot be read."""
        metadata = one.metadata
        involved = resource.reference(metadata.name, metadata.namespace, metadata.uid)
        self.tell(Happening(involved, UNREADABLE, f"cedana-sched leaves it alone: {one.problem}", warning=True))

    async def run(self) -> None:
        """Write what is told, for ever."""
        while True:
            happening = await self._queue.get()
            try:
                await self._write(happening)
            except ApiError as error:
                log.warning("event not written", reason=happening.reason, problem=error.message)

    async def _write(self, happening: Happening) -> None:
        namespace = happening.involved.get("namespace") or self._namespace
        now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._told.pop(_key(happening), None)
        if known is not None and time.monotonic() - known[2] < SAME_SECONDS:
            name, count, _ = known
            patch: Object = {"count": count + 1, "lastTimestamp": now}
            await self._api.patch(EVENTS, name, namespace, patch)
        else:
            name, count = f"{happening.involved['name'][:200]}.{uuid.uuid4().hex[:16]}", 0
            body = self._body(happening, name, namespace, now)
            await self._api.create(EVENTS, body, into=dict)
        self._told[_key(happening)] = (name, count + 1, time.monotonic())
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _body(self, happening: Happening, name: str, namespace: str, now: str) -> Object:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": happening.involved,
            "type": "Warning" if happening.warning else "Normal",
            "reason": happening.reason,
            "message": happening.message[:1024],
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _key(happening: Happening) -> tuple[str, ...]:
    involved = happening.involved
    return involved.get("uid", ""), involved["kind"], involved["name"], happening.reason, happening.message
