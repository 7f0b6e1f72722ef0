"""In-memory API server for fake schedulers: the part of `kube.client.Api` that adapters use."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, AlreadyExistsError, ApiUnavailableError, ConflictError
from cedana_sched.kube.resources import Resource

T = TypeVar("T")
Key = tuple[str, str, str]


class _Lists(Protocol):
    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: Any
    ) -> tuple[tuple[Any, ...], str]: ...


class ListsInMemory:
    """Mixin for a fake `Api`: implements `list_each` by `list_all`."""

    async def list_each(
        self: _Lists,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str] | None,
        see: Callable[[msgspec.Raw], None],
        *,
        only_metadata: bool = False,  # noqa: ARG002 - further fields are skipped
    ) -> str:
        found, version = await self.list_all(resource, namespace, query, into=dict)
        for body in found:
            see(msgspec.Raw(msgspec.json.encode(body)))
        return version


class FakeApi(ListsInMemory, Api):
    """Objects, resource versions and watches. `down`: requests fail; open watches stay open."""

    def __init__(self) -> None:
        self.down = False
        self._objects: dict[Key, Object] = {}
        self._versions = itertools.count(1)
        self._watchers: dict[str, list[asyncio.Queue[Object]]] = {}
        self._sinks: list[Callable[[], None]] = []
        self._changed = asyncio.Event()

    # -- as other clients of the cluster

    def put(self, resource: Resource, body: Object) -> Object:
        """Create or replace an object; an existing object keeps its uid."""
        metadata = body["metadata"]
        key = _key(resource, metadata["name"], metadata.get("namespace"))
        version = str(next(self._versions))
        before = self._objects.get(key)
        uid = metadata.get("uid") or (before["metadata"]["uid"] if before else f"uid-{version}")
        stored = {**copy.deepcopy(body), "metadata": {**metadata, "uid": uid, "resourceVersion": version}}
        self._objects[key] = stored
        self._tell(resource, "ADDED" if before is None else "MODIFIED", stored)
        return stored

    def merge(self, resource: Resource, name: str, namespace: str | None, patch: Object) -> Object:
        """Merge a patch (RFC 7386) into an object."""
        stored = copy.deepcopy(self._stored(resource, name, namespace))
        _merge(stored, copy.deepcopy(patch))
        return self.put(resource, stored)

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """Delete an object, if it exists."""
        if (gone := self._objects.pop(_key(resource, name, namespace), None)) is not None:
            self._tell(resource, "DELETED", gone)

    def stored(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """Return an object's current state."""
        return self._objects.get(_key(resource, name, namespace))

    def all_of(self, resource: Resource) -> tuple[Object, ...]:
        """Return all objects of a kind in order of creation."""
        return tuple(body for (plural, _, _), body in self._objects.items() if plural == resource.plural)

    def repeat(self) -> None:
        """Repeat the current state on every watch."""
        for (plural, _, _), body in tuple(self._objects.items()):
            for queue in self._watchers.get(plural, []):
                queue.put_nowait({"type": "MODIFIED", "object": body})

    def subscribe(self, sink: Callable[[], None]) -> None:
        """Register `sink`, called soon after every change."""
        self._sinks.append(sink)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a predicate holds; evaluated after every change."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    # -- the `Api` interface

    async def get(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T:
        self._reach()
        return msgspec.convert(self._stored(resource, name, namespace), into)

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        self._reach()
        if _key(resource, body["metadata"]["name"], body["metadata"].get("namespace")) in self._objects:
            raise AlreadyExistsError(f"{resource.kind} {body['metadata']['name']} exists", status=409)
        return msgspec.convert(self.put(resource, body), into)

    async def update(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        self._reach()
        _check(self._stored(resource, body["metadata"]["name"], body["metadata"].get("namespace")), body)
        return msgspec.convert(self.put(resource, body), into)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        *,
        subresource: str | None = None,  # noqa: ARG002 - objects have no subresources here
    ) -> None:
        self._reach()
        if isinstance(patch, list):
            raise NotImplementedError("JSON patches")
        _check(self._stored(resource, name, namespace), patch)
        self.merge(resource, name, namespace, patch)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        manager: str = "",  # noqa: ARG002 - fields have no other owners here
        subresource: str | None = None,  # noqa: ARG002 - objects have no subresources here
    ) -> None:
        self._reach()
        metadata = body["metadata"]
        if self.stored(resource, metadata["name"], metadata.get("namespace")) is None:
            self.put(resource, body)
        else:
            self.merge(resource, metadata["name"], metadata.get("namespace"), body)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> None:
        self._reach()
        found = self.stored(resource, name, namespace)
        if found is None:
            return
        if uid is not None:
            _check(found, {"metadata": {"uid": uid}})
        self.remove(resource, name, namespace)

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: type[T]
    ) -> tuple[tuple[T, ...], str]:
        self._reach()
        found = [body for body in self.all_of(resource) if _is_selected(body, namespace, query or {})]
        return tuple(msgspec.convert(body, into) for body in found), "0"

    async def stream(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        *,
        silent_seconds: float,  # noqa: ARG002 - the stream is never cut
        only_metadata: bool = False,  # noqa: ARG002 - further fields are skipped
    ) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[Object] = asyncio.Queue()
        watchers = self._watchers.setdefault(resource.plural, [])
        watchers.append(queue)
        try:
            while True:
                event = await queue.get()
                if _is_selected(event["object"], namespace, query):
                    yield msgspec.json.encode(event)
        finally:
            watchers.remove(queue)

    def _reach(self) -> None:
        if self.down:
            raise ApiUnavailableError("no answer", remedy="it is tried again")

    def _stored(self, resource: Resource, name: str, namespace: str | None) -> Object:
        found = self.stored(resource, name, namespace)
        if found is None:
            raise AbsentError(f"no {resource.kind} {namespace}/{name}", status=404)
        return found

    def _tell(self, resource: Resource, kind: str, body: Object) -> None:
        for queue in self._watchers.get(resource.plural, []):
            queue.put_nowait({"type": kind, "object": body})
        self._changed.set()
        for sink in self._sinks:
            asyncio.get_running_loop().call_soon(sink)


def _key(resource: Resource, name: str, namespace: str | None) -> Key:
    return resource.plural, namespace or "", name


def _check(stored: Object, written: Object) -> None:
    """Check the preconditions of a write."""
    for field in ("uid", "resourceVersion"):
        wanted = written["metadata"].get(field)
        if wanted is not None and wanted != stored["metadata"][field]:
            raise ConflictError(f"{field} is {stored['metadata'][field]}, not {wanted}", status=409, reason="Conflict")


def _is_selected(body: Object, namespace: str | None, query: Mapping[str, str]) -> bool:
    metadata = body["metadata"]
    labels = [pair.partition("=") for pair in query.get("labelSelector", "").split(",") if pair]
    fields = [pair for pair in query.get("fieldSelector", "").split(",") if pair]
    return (
        namespace in {None, metadata.get("namespace")}
        and all(_has_field(body, *pair.partition("=")[::2]) for pair in fields)
        and all((metadata.get("labels") or {}).get(name) == value for name, _, value in labels)
    )


def _has_field(body: Object, name: str, value: str) -> bool:
    """Return whether `a.b=value` or `a.b!=value` holds; an absent field is empty."""
    path, found = name.removesuffix("!").split("."), body
    for part in path:
        found = found.get(part) or {}
    return ((found or "") == value) is not name.endswith("!")


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            into = target.get(name)
            target[name] = into if isinstance(into, dict) else {}
            _merge(target[name], value)
        else:
            target[name] = value
