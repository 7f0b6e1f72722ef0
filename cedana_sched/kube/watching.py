"""Watches that never end: a list, then every change, across broken connections and expired resource versions.

An `Informer` caches a watch's objects, so that components read them without requests to the API server.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiError, ApiUnavailableError, GoneError, RefusedByServerError
from cedana_sched.kube.resources import ESSENTIAL, Resource
from cedana_sched.kube.response_decoding import (
    Unreadable,
    UnreadableSink,
    explain_watch_error,
    read,
    read_error,
    read_line,
    read_metadata,
)
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched.retrying import WATCHES, Backoff

log = structlog.get_logger(__name__)

WATCH_SECONDS = 300
"""Timeout of a watch on the API server; bookmarks come about once a minute, so longer silence is a fault."""
SILENT_SECONDS = 90.0
SHORT_SECONDS = 1.0
"""A watch that ends sooner, without an event, has failed."""
REFUSED_TIMES = 5
"""Attempts to resume a watch at its version; whether the version has expired, an API server may reveal only on a
list."""
ABSENT_SECONDS = 60.0
"""Grace period for absent kinds: an API server that has just started does not serve all kinds at once."""


class Named(Protocol):
    """The metadata that an informer needs; `Metadata` has it."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def resource_version(self) -> str: ...


class HasName(Protocol):
    @property
    def metadata(self) -> Named: ...


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasName)
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """The complete list; replaces all earlier changes."""

    objects: tuple[T, ...]
    unreadable: tuple[Unreadable, ...] = ()


class Changed(msgspec.Struct, Generic[T], frozen=True):
    """The current version of one object."""

    object: T


class Deleted(msgspec.Struct, frozen=True):
    """A deleted object; only its name counts."""

    object: HasName


Change = Listed[T] | Changed[T] | Deleted | Unreadable


class Watch(Generic[T]):
    """Follows the objects of one kind that the selectors match, in all namespaces or one.

    Objects are decoded here: one that does not decode `into` the type yields `Unreadable`, and affects no other object.

    Args:
        only_metadata: request metadata only; selectors match whole objects all the same.
        within: objects of other namespaces are ignored, also those that cannot be decoded.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        into: type[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        only_metadata: bool = False,
        within: ServedNamespaces = EVERYWHERE,
    ) -> None:
        self._api = api
        self.resource = resource
        self._within = within
        self._namespace = namespace
        self._query = {name: value for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._into = into
        self._only_metadata = only_metadata
        self.problem: ApiError | None = None
        """Why the watch receives nothing; None while it works."""

    async def changes(self) -> AsyncGenerator[Change[T], None]:
        """Yield `Listed`, then changes; `Listed` again if changes may have been missed. Never ends.

        Raises:
            AbsentError: the kind is not served, is not in `resources.ESSENTIAL`, and was not served before, or has not
                been for `ABSENT_SECONDS`.
        """
        backoff, absent_since = Backoff(WATCHES), -math.inf
        while True:
            try:
                listed, version = await self._list_all()
                absent_since, self.problem = math.inf, None
                yield listed
                async for change in self._follow(version):
                    backoff.reset()
                    if change is not None:
                        yield change
            except GoneError:
                log.info("watch begins anew", kind=self.resource.kind)
                await asyncio.sleep(backoff.next_pause())
            except ApiError as error:
                if self._is_absent(error):
                    absent_since = min(absent_since, time.monotonic())
                    if time.monotonic() - absent_since > ABSENT_SECONDS:
                        raise
                pause, self.problem = backoff.next_pause(), error
                problem = explain_watch_error(error, self.resource)
                log.warning("watch broken", kind=self.resource.kind, error=problem, pause_seconds=pause)
                await asyncio.sleep(pause)

    def _is_absent(self, error: ApiError) -> bool:
        return isinstance(error, AbsentError) and self.resource not in ESSENTIAL

    async def _list_all(self) -> tuple[Listed[T], str]:
        objects: list[T] = []
        unreadable: list[Unreadable] = []

        def see(body: msgspec.Raw) -> None:
            found = read(self.resource, body, self._into)
            if not self._within.includes(found.metadata.namespace):
                return
            if isinstance(found, Unreadable):
                unreadable.append(found)
            else:
                objects.append(found)

        version = await self._api.list_each(
            self.resource, self._namespace, self._query, see, only_metadata=self._only_metadata
        )
        return Listed(tuple(objects), tuple(unreadable)), version

    async def _follow(self, version: str) -> AsyncGenerator[Changed[T] | Deleted | Unreadable | None, None]:
        """Yield changes since `version`, and None for a bookmark.

        A watch that ends normally, or whose connection breaks, is resumed at its last version. Any other error, or a
        line that cannot be decoded, ends it: a new list follows.
        """
        backoff, refused = Backoff(WATCHES), 0
        while True:
            began, has_received = time.monotonic(), False
            try:
                async for line in self._api.stream(
                    self.resource,
                    self._namespace,
                    self._watch_query(version),
                    silent_seconds=SILENT_SECONDS,
                    only_metadata=self._only_metadata,
                ):
                    version, change = self._decode_line(line)
                    has_received, refused, self.problem = True, 0, None
                    backoff.reset()
                    yield change
                if not has_received:
                    self._check_length(time.monotonic() - began)
            except ApiUnavailableError as error:
                refused += error.status != 0
                if refused > REFUSED_TIMES:
                    raise
                pause = backoff.next_pause()
                log.info("watch resumes", kind=self.resource.kind, error=error.message, pause_seconds=pause)
                await asyncio.sleep(pause)

    def _check_length(self, seconds: float) -> None:
        if seconds < SHORT_SECONDS:
            raise ApiUnavailableError(f"watch of {self.resource.plural} ended at once", status=200)

    def _decode_line(self, line: bytes) -> tuple[str, Changed[T] | Deleted | Unreadable | None]:
        """Return the resource version and the change of one line of a watch."""
        event = read_line(self.resource, line)
        if event.type == "ERROR":
            raise read_error(self.resource, event.object)
        if event.type in {"BOOKMARK", "DELETED"}:
            metadata = read_metadata(self.resource, event.object)
            return metadata.resource_version, None if event.type == "BOOKMARK" else Deleted(PartialObject(metadata))
        seen = read(self.resource, event.object, self._into)
        if not self._within.includes(seen.metadata.namespace):
            return seen.metadata.resource_version, None
        return seen.metadata.resource_version, seen if isinstance(seen, Unreadable) else Changed(seen)

    def _watch_query(self, version: str) -> Mapping[str, str]:
        return {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }


class Informer(Generic[T]):
    """A cache of a watch's objects, by namespace and name, with subscribers to changes.

    Run `run` as a task; `synced` is set from the first list on.

    Args:
        watch: the watch to follow.
        unreadable: receives each object that cannot be decoded. The cache keeps the object's last decoded version, if
            any: the object must not count as deleted.
    """

    def __init__(self, watch: Watch[T], unreadable: UnreadableSink | None = None) -> None:
        self._watch = watch
        self._unreadable = unreadable
        self._objects: dict[Key, T] = {}
        self._sinks: list[Callable[[T | None, T | None], None]] = []
        self.synced = asyncio.Event()

    @property
    def unsynced_reason(self) -> str | None:
        """Why the informer is not synced yet, for `/readyz`; None once it is."""
        if self.synced.is_set():
            return None
        resource, problem = self._watch.resource, self._watch.problem
        return f"{resource.plural} are being listed" if problem is None else explain_watch_error(problem, resource)

    @property
    def refusal_reason(self) -> str | None:
        """Why the API server refuses the watch (401, 403, 404), synced before or not; None while it works."""
        problem = self._watch.problem
        is_refused = isinstance(problem, RefusedByServerError | AbsentError)
        return explain_watch_error(problem, self._watch.resource) if problem is not None and is_refused else None

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def subscribe(self, sink: Callable[[T | None, T | None], None]) -> None:
        """Call `sink(before, now)` on every change: None before it exists, None once it is deleted. Must not block."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Callable[[T | None, T | None], None]) -> None:
        self._sinks.remove(sink)

    def view_of_namespaces(self, served: ServedNamespaces) -> Informer[T]:
        """Return a view of these namespaces; running this informer updates the view."""
        return _NamespaceView(self._watch, self, served)

    async def run(self) -> None:
        """Follow the watch forever; see `Watch.changes`."""
        async for change in self._watch.changes():
            match change:
                case Listed(objects, unreadable):
                    self._replace(objects, unreadable)
                    self.synced.set()
                case Changed(changed):
                    self._put(changed)
                case Deleted():
                    self._drop(change.object)
                case Unreadable():
                    self._keep_last_version(change)

    def _replace(self, objects: tuple[T, ...], unreadable: tuple[Unreadable, ...] = ()) -> None:
        current = {object_key_of(one) for one in objects} | {object_key_of(one) for one in unreadable}
        for key, gone in tuple(self._objects.items()):
            if key not in current:
                self._drop(gone)
        for one in objects:
            known = self._objects.get(object_key_of(one))
            if known is None or known.metadata.resource_version != one.metadata.resource_version:
                self._put(one)
        for left in unreadable:
            self._keep_last_version(left)

    def _put(self, now: T) -> None:
        before = self._objects.get(object_key_of(now))
        if before is not None and before.metadata.uid != now.metadata.uid:  # deleted and recreated, unseen
            self._notify_subscribers(before, None)
            before = None
        self._objects[object_key_of(now)] = now
        self._notify_subscribers(before, now)

    def _keep_last_version(self, one: Unreadable) -> None:
        """Report an undecodable object and keep its last version; an older object of that name is deleted."""
        known = self._objects.get(object_key_of(one))
        if known is not None and known.metadata.uid != one.metadata.uid:
            self._drop(known)
        kind, metadata = self._watch.resource.kind, one.metadata
        log.warning(
            "object cannot be read", kind=kind, namespace=metadata.namespace, name=metadata.name, error=one.problem
        )
        if self._unreadable is not None:
            self._unreadable(self._watch.resource, one)

    def _drop(self, gone: HasName) -> None:
        before = self._objects.pop(object_key_of(gone), None)
        if before is not None:
            self._notify_subscribers(before, None)

    def _notify_subscribers(self, before: T | None, now: T | None) -> None:
        for sink in tuple(self._sinks):
            try:
                sink(before, now)
            except Exception:  # a defect shown by one object must affect neither the others nor the component
                names = [one.metadata.name for one in (before, now) if one is not None]
                log.exception("subscriber failed", kind=self._watch.resource.kind, names=names)


class _NamespaceView(Informer[T]):
    """A view of an informer; see `Informer.within`."""

    def __init__(self, watch: Watch[T], whole: Informer[T], served: ServedNamespaces) -> None:
        super().__init__(watch)
        self._served = served
        self.synced = whole.synced
        for one in whole:
            self._on_object_change(None, one)
        whole.subscribe(self._on_object_change)

    def _on_object_change(self, before: T | None, now: T | None) -> None:
        one = now if now is not None else before
        if one is None or not self._served.includes(one.metadata.namespace):
            return
        if now is not None:
            self._put(now)
        else:
            self._drop(one)


def first_unsynced_reason(*informers: Informer[Any]) -> str | None:
    """Return what the first unsynced informer waits for, for `/readyz`."""
    return next((what for one in informers if (what := one.unsynced_reason) is not None), None)


def object_key_of(one: HasName) -> Key:
    """Return the key under which an informer caches the object."""
    return one.metadata.namespace, one.metadata.name
