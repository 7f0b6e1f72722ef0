"""Human-readable Events on the objects that users inspect. Best-effort: an Event never delays or fails its cause."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter, OrderedDict

import msgspec
import structlog

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiError
from cedana_sched.kube.resources import EVENTS, Resource
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.path_segment_validation import LONGEST_OBJECT_NAME

log = structlog.get_logger(__name__)

COMPONENT = "cedana-sched"
"""Source of all our Events."""
UNREADABLE = "Unreadable"
"""Reason of an Event on an object that does not match its kind's schema."""
KEPT = 10_000
"""Bound of the queue of unwritten Events, for normal Events and for warnings each."""
SHARES = 100
"""Part of `KEPT` that a namespace has for its warnings however many others wait."""
SAME_SECONDS = 600.0
"""An Event repeated within this time is counted, not created again; a warning is retried for this long."""
REMEMBERED = 4_096
LONGEST_MESSAGE = 1024
"""Characters that the API server accepts in an Event's message."""

NAMESPACE_OF_OTHERS = "default"
"""Namespace of Events on cluster-scoped objects: the API server accepts no other (`legacyValidateEvent` in
Kubernetes' pkg/apis/core/validation/events.go)."""

_NEVER_TAKEN = (400, 422)
_NO_NAME = re.compile(r"[^a-z0-9.-]+")

_Key = tuple[str, ...]
"""Begins with the namespace; empty for cluster-scoped objects."""


class ObjectEvent(msgspec.Struct, frozen=True):
    """An occurrence on an object. `involved` is an ObjectReference; `reason` is one CamelCase word."""

    involved: dict[str, str]
    reason: str
    message: str
    warning: bool = False


class _QueuedEvent(msgspec.Struct):
    """A queued Event with its count; `others` counts the Events merged into it."""

    event: ObjectEvent
    since: float
    count: int = 1
    others: int = 0


class EventRecorder:
    """Publishes Events in the background, several at a time; repetitions before the write are counted.

    Tenants cause Events, as many as they like: so those of each namespace are written in turn. If too many normal
    Events are queued, the oldest are dropped, and that is logged. Warnings are never dropped: if too many are queued,
    those of one namespace and reason are merged into one Event, which names their number; not those of a namespace with
    few.

    Args:
        api: with permission to create and patch Events.
        component: the source, shown by `kubectl describe` under FROM.
    """

    def __init__(self, api: Api, component: str) -> None:
        self._api = api
        self._component = component
        self._normal: OrderedDict[_Key, _QueuedEvent] = OrderedDict()
        self._warnings: OrderedDict[_Key, _QueuedEvent] = OrderedDict()
        self._warnings_of_namespace: Counter[str] = Counter()
        self._writing_normal: WorkQueue[_Key] = WorkQueue("Event", self._write_normal, group_of=_namespace_of)
        self._writing_warnings: WorkQueue[_Key] = WorkQueue(
            "Event of a warning", self._write_warning, group_of=_namespace_of
        )
        self._written: OrderedDict[_Key, tuple[str, int, float]] = OrderedDict()

    def record_event(self, event: ObjectEvent) -> None:
        """Queue an Event; returns at once."""
        event = _truncate_texts(event)
        key = _deduplication_key(event)
        waiting = self._warnings if event.warning else self._normal
        if (known := waiting.get(key)) is not None:
            known.count += 1
        elif len(waiting) < KEPT or (
            event.warning and self._warnings_of_namespace[_namespace_of(key)] < KEPT // SHARES
        ):
            self._add(key, _QueuedEvent(event, time.monotonic()))
        elif not event.warning:
            _, dropped = waiting.popitem(last=False)
            log.warning("event dropped", reason=dropped.event.reason, message=dropped.event.message)
            self._add(key, _QueuedEvent(event, time.monotonic()))
        else:
            self._merge_warning(event)

    def _merge_warning(self, event: ObjectEvent) -> None:
        """Merge warnings of one namespace and reason."""
        log.warning("event joined with others", reason=event.reason, message=event.message)
        key = event.involved.get("namespace", ""), "joined", event.reason
        if (known := self._warnings.get(key)) is not None:
            known.others += 1
        else:
            self._add(key, _QueuedEvent(event, time.monotonic()))

    def _add(self, key: _Key, waiting: _QueuedEvent) -> None:
        if waiting.event.warning:
            self._warnings[key] = waiting
            self._warnings_of_namespace[_namespace_of(key)] += 1
            self._writing_warnings.add(key)
        else:
            self._normal[key] = waiting
            self._writing_normal.add(key)

    def record_unreadable(self, resource: Resource, one: Unreadable) -> None:
        """Queue an Event that the object cannot be decoded."""
        metadata = one.metadata
        involved = resource.reference(metadata.name, metadata.namespace, metadata.uid)
        self.record_event(
            ObjectEvent(involved, UNREADABLE, f"cedana-sched leaves it alone: {one.problem}", warning=True)
        )

    async def run(self) -> None:
        """Write queued Events, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writing_warnings.run(), name="warnings")
            group.create_task(self._writing_normal.run(), name="events")

    async def _write_normal(self, key: _Key) -> None:
        if (waiting := self._normal.pop(key, None)) is None:
            return  # dropped meanwhile
        try:
            await self._write(waiting)
        except ApiError as error:
            log.warning("event not written", reason=waiting.event.reason, error=error.message)

    async def _write_warning(self, key: _Key) -> None:
        """Write one warning; raises ApiError to be retried. An object whose namespace is gone needs no Event."""
        waiting = self._warnings[key]
        attempted = msgspec.structs.replace(waiting)
        try:
            await self._write(attempted)
        except ApiError as error:
            is_vain = isinstance(error, AbsentError) or error.status in _NEVER_TAKEN
            is_over = is_vain or time.monotonic() - waiting.since > SAME_SECONDS
            if not is_over:
                raise
            log.error("event not written", reason=attempted.event.reason, error=error.message)  # noqa: TRY400
        waiting.count -= attempted.count
        waiting.others -= attempted.others
        if waiting.count > 0 or waiting.others > 0:  # repeated meanwhile
            self._writing_warnings.add(key)
        else:
            self._drop_warning(key)

    def _drop_warning(self, key: _Key) -> None:
        del self._warnings[key]
        namespace = _namespace_of(key)
        self._warnings_of_namespace[namespace] -= 1
        if not self._warnings_of_namespace[namespace]:
            del self._warnings_of_namespace[namespace]

    async def _write(self, waiting: _QueuedEvent) -> None:
        event = _with_merged_count(waiting)
        namespace = event.involved.get("namespace") or NAMESPACE_OF_OTHERS
        now = SERVER_TIME.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._written.pop(_deduplication_key(event), None)
        if known is not None and time.monotonic() - known[2] < SAME_SECONDS:
            name, count, _ = known
            patch: Object = {"count": count + max(waiting.count, 1), "lastTimestamp": now}
            await self._api.patch(EVENTS, name, namespace, patch)
        else:
            name, count = f"{_event_name_prefix(event)}.{uuid.uuid4().hex[:16]}", 0
            body = self._body(event, name, namespace, now) | {"count": max(waiting.count, 1)}
            await self._api.create(EVENTS, body, into=dict)
        self._written[_deduplication_key(event)] = (name, count + max(waiting.count, 1), time.monotonic())
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    def _body(self, event: ObjectEvent, name: str, namespace: str, now: str) -> Object:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": event.involved,
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
        }


def _truncate_texts(event: ObjectEvent) -> ObjectEvent:
    """Return the Event with its texts cut to their bounds: users write some of them, of any length."""
    involved = {key: value[:LONGEST_OBJECT_NAME] for key, value in event.involved.items()}
    return msgspec.structs.replace(event, involved=involved, message=event.message[:LONGEST_MESSAGE])


def _event_name_prefix(event: ObjectEvent) -> str:
    """Return the prefix of the Event's own name; no object has to have that name."""
    return _NO_NAME.sub("-", event.involved["name"].lower())[:200].strip("-.") or "object"


def _with_merged_count(waiting: _QueuedEvent) -> ObjectEvent:
    event = waiting.event
    message = event.message
    if waiting.others > 0:
        message = (
            f"{message[: LONGEST_MESSAGE - 100]} (and {waiting.others} more objects of this namespace: see the log)"
        )
    # a program's output may have characters that JSON cannot encode
    return msgspec.structs.replace(event, message=message.encode(errors="replace").decode())


def _deduplication_key(event: ObjectEvent) -> tuple[str, ...]:
    involved = event.involved
    namespace, uid = involved.get("namespace", ""), involved.get("uid", "")
    return namespace, uid, involved["kind"], involved["name"], event.reason, event.message


def _namespace_of(key: _Key) -> str:
    return key[0]
