"""Watches that never end: what there is, then every change, over broken connections and forgotten versions.

A `Mirror` keeps what a watch has told, so that many may look without asking the API server.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError, GoneError, error_of
from cedana_sched.kube.objects import Metadata, PartialObject
from cedana_sched.kube.resources import Resource

log = structlog.get_logger(__name__)

WATCH_SECONDS = 300
"""The API server ends a watch after this long; bookmarks come about once a minute, so that silence is a fault."""
SILENT_SECONDS = 90.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0


class Named(Protocol):
    """As much of an object's metadata as a mirror needs; `Metadata` has it."""

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
"""Namespace (empty where the kind has none) and name."""


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """All that there is; it replaces everything told before."""

    objects: tuple[T, ...]


class Changed(msgspec.Struct, Generic[T], frozen=True):
    """One object as it is now."""

    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True):
    """One object as it was last."""

    object: T


Change = Listed[T] | Changed[T] | Deleted[T]


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Watch(Generic[T]):
    """What becomes of the objects of one kind that the selectors match, everywhere or in one namespace."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        into: type[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> None:
        self._api = api
        self.resource = resource
        self._namespace = namespace
        self._query = {name: value for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._into = into
        self._object = msgspec.json.Decoder(into)
        self._line = msgspec.json.Decoder(_Line)

    async def changes(self) -> AsyncGenerator[Change[T], None]:
        """First `Listed`, then what changes; another `Listed` when changes may have been missed. Never ends."""
        pauses = _pauses()
        while True:
            try:
                objects, version = await self._list_all()
                yield Listed(objects)
                pauses = _pauses()
                async for change in self._follow(version):
                    yield change
            except GoneError:
                log.info("watch begins anew", kind=self.resource.kind)
            except ApiUnavailableError as error:
                pause = next(pauses)
                log.warning("watch broken", kind=self.resource.kind, problem=error.message, pause_seconds=pause)
                await asyncio.sleep(pause)

    async def _list_all(self) -> tuple[tuple[T, ...], str]:
        return await self._api.list_all(self.resource, self._namespace, self._query, into=self._into)

    async def _follow(self, version: str) -> AsyncGenerator[Change[T], None]:
        """Changes since `version`; a watch that the API server ends in good order goes on where it was."""
        pauses = _pauses()
        while True:
            query = self._watch_query(version)
            try:
                async for line in self._api.stream(
                    self.resource, self._namespace, query, silent_seconds=SILENT_SECONDS
                ):
                    told = self._line.decode(line)
                    if told.type == "ERROR":
                        raise _watch_error(self.resource, bytes(told.object))
                    if told.type == "BOOKMARK":
                        version = msgspec.json.decode(told.object, type=PartialObject).metadata.resource_version
                        continue
                    seen = self._object.decode(told.object)
                    version = seen.metadata.resource_version
                    yield Deleted(seen) if told.type == "DELETED" else Changed(seen)
                    pauses = _pauses()
            except ApiUnavailableError as error:
                pause = next(pauses)
                log.info("watch resumes", kind=self.resource.kind, problem=error.message, pause_seconds=pause)
                await asyncio.sleep(pause)

    def _watch_query(self, version: str) -> Mapping[str, str]:
        return {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }


def _watch_error(resource: Resource, status: bytes) -> Exception:
    class Code(msgspec.Struct):
        code: int = 500

    return error_of(f"watch of {resource.plural}", msgspec.json.decode(status, type=Code).code, status)


def _pauses() -> Iterator[float]:
    """Seconds between attempts, growing, and different for everyone, so that not all come back at once."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


class Mirror(Generic[T]):
    """The objects of one watch, by namespace and name, and whoever wants to hear of changes.

    Run `run` as a task; `synced` is set from the first list on.
    """

    def __init__(self, watch: Watch[T]) -> None:
        self._watch = watch
        self._objects: dict[Key, T] = {}
        self._sinks: list[Callable[[T | None, T | None], None]] = []
        self.synced = asyncio.Event()

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def subscribe(self, sink: Callable[[T | None, T | None], None]) -> None:
        """`sink(before, now)` hears of every change: None before it was there, None when it is gone. Must not block."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Callable[[T | None, T | None], None]) -> None:
        self._sinks.remove(sink)

    async def run(self) -> None:
        """Follow the watch for ever."""
        async for change in self._watch.changes():
            match change:
                case Listed(objects):
                    self._replace(objects)
                    self.synced.set()
                case Changed(changed):
                    self._put(changed)
                case Deleted(deleted):
                    self._drop(deleted)

    def _replace(self, objects: tuple[T, ...]) -> None:
        current = {name_of(one): one for one in objects}
        for key, gone in tuple(self._objects.items()):
            if key not in current:
                self._drop(gone)
        for one in objects:
            known = self._objects.get(name_of(one))
            if known is None or known.metadata.resource_version != one.metadata.resource_version:
                self._put(one)

    def _put(self, now: T) -> None:
        before = self._objects.get(name_of(now))
        if before is not None and before.metadata.uid != now.metadata.uid:  # deleted and made anew, unseen
            self._tell(before, None)
            before = None
        self._objects[name_of(now)] = now
        self._tell(before, now)

    def _drop(self, gone: T) -> None:
        before = self._objects.pop(name_of(gone), None)
        if before is not None:
            self._tell(before, None)

    def _tell(self, before: T | None, now: T | None) -> None:
        for sink in tuple(self._sinks):
            sink(before, now)


def name_of(one: HasName) -> Key:
    """Under which name a mirror has it."""
    return one.metadata.namespace, one.metadata.name
