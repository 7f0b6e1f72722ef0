"""An API server in memory, in place of a `kube.client.Api`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from cedana_sched.kube.client import FIELD_MANAGER, Api, Object
from cedana_sched.kube.errors import AbsentError, decoded, error_of
from cedana_sched.kube.resources import PODS, Resource
from cedana_sched.testing.patches import merge
from cedana_sched.testing.selectors import selects
from cedana_sched.testing.store import Change, Key, ObjectStore, key_of
from cedana_sched.testing.traffic import Traffic, Write
from cedana_sched.testing.watches import Watches

T = TypeVar("T")


class FakeApi(Api):
    """The client of an API server in memory; `put`, `merge` and `remove` are what other clients do meanwhile."""

    def __init__(self, traffic: Traffic | None = None) -> None:
        self.store = ObjectStore()
        self.watches = Watches(self.store)
        self.traffic = traffic or Traffic()
        self.refused_evictions: set[str] = set()
        """Names of pods whose budget does not allow their eviction."""
        self._sinks: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self.store.subscribe(self._publish)

    # -- as other clients of the cluster

    @property
    def objects(self) -> dict[Key, Object]:
        return self.store.objects

    def put(self, resource: Resource, body: Object) -> Object:
        """Create or replace an object, status and all; an object that exists keeps its uid."""
        return self.store.put(resource, body)

    def merge(self, resource: Resource, name: str, namespace: str | None, patch: Object) -> Object:
        """Merge a patch (RFC 7386) into an object, status and all."""
        body = copy.deepcopy(self.store.get(resource, name, namespace))
        merge(body, patch)
        return self.store.put(resource, body)

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """Remove an object, if it exists."""
        self.store.remove(resource, name, namespace)

    def stored(self, resource: Resource, name: str, namespace: str | None = None) -> Any:
        """Return an object's current state, or None if it does not exist."""
        return self.store.objects.get((resource, namespace or "", name))

    def all_of(self, resource: Resource) -> tuple[Object, ...]:
        """Return all objects of a kind in order of creation."""
        return tuple(body for key, body in self.store.objects.items() if key[0] == resource)

    def repeat_current_state(self) -> None:
        """Repeat the current state on every watch."""
        self.watches.repeat_current_state()

    def subscribe(self, sink: Callable[[], None]) -> None:
        """Register `sink`, called soon after every change."""
        self._sinks.append(sink)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a predicate holds; evaluated after every change."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _publish(self, _: Change) -> None:
        self._changed.set()
        for sink in self._sinks:
            asyncio.get_running_loop().call_soon(sink)

    # -- the `Api` interface

    async def version(self) -> str:
        return "v1.36.2"

    async def get(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T:
        async with self.traffic.request("get", resource):
            return _answer(resource, self.store.get(resource, name, namespace), into)

    async def find_metadata(
        self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]
    ) -> T | None:
        return await self.find(resource, name, namespace, into=into)

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        async with self.traffic.request("create", resource, body["metadata"].get("namespace")):
            made = self.store.create(resource, body)
            self._record("create", resource, body["metadata"]["name"], body)
            return _answer(resource, made, into)

    async def update(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        async with self.traffic.request("update", resource):
            written = self.store.update(resource, body)
            self._record("update", resource, body["metadata"]["name"], body)
            return _answer(resource, written, into)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        *,
        subresource: str | None = None,
    ) -> None:
        async with self.traffic.request("patch", resource):
            self.store.patch(resource, name, namespace, patch, subresource)
            self._record("patch", resource, name, patch)

    async def apply(
        self, resource: Resource, body: Object, *, manager: str = FIELD_MANAGER, subresource: str | None = None
    ) -> None:
        """Merge the body: fields have no other owners here."""
        del manager
        async with self.traffic.request("apply", resource):
            _, namespace, name = key_of(resource, body)
            if self.stored(resource, name, namespace) is None and subresource is None:
                self.store.create(resource, body)
            else:
                self.store.patch(resource, name, namespace, body, subresource)
            self._record("apply", resource, name, body)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> None:
        async with self.traffic.request("delete", resource):
            try:
                self.store.delete(resource, name, namespace, uid)
            except AbsentError:
                return
            self._record("delete", resource, name, {})

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Delete the pod, unless `refused_evictions` names it: budgets are not evaluated here."""
        async with self.traffic.request("create", PODS):
            self.store.get(PODS, name, namespace)
            if name in self.refused_evictions:
                raise error_of(f"POST {name}/eviction", 429, b'{"reason": "TooManyRequests"}')
            self._record("evict", PODS, name, {})
            self.store.delete(PODS, name, namespace, uid)

    async def list_each(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str] | None,
        see: Callable[[msgspec.Raw], None],
        *,
        only_metadata: bool = False,
    ) -> str:
        async with self.traffic.request("list", resource):
            for body in self.all_of(resource):
                if selects(body, namespace, query or {}):
                    see(msgspec.Raw(msgspec.json.encode({"metadata": body["metadata"]} if only_metadata else body)))
            return str(self.store.version)

    def stream(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        *,
        silent_seconds: float,  # noqa: ARG002 - the stream is never cut
        only_metadata: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        return self.watches.lines(resource, namespace, query, only_metadata=only_metadata)

    def _record(self, verb: str, resource: Resource, name: str, body: Object | list[Object]) -> None:
        self.traffic.writes.append(Write(verb, resource, name, body))


def _answer(resource: Resource, body: Object, into: type[T]) -> T:
    return decoded(resource.plural, msgspec.json.encode(body), into)
