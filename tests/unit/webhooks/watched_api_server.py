"""As much of an API server as the webhooks' watches and writes need: lists, watches, versions, patches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from cedana_sched.adapter.conformance.fake_api import ListsInMemory
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AlreadyExistsError, ConflictError, RefusedByServerError
from cedana_sched.kube.resources import Resource
from tests.unit.webhooks.admission_builders import patched

Key = tuple[str, str, str]


class FakeApiServer(ListsInMemory, Api):
    """Objects in memory; `writes` counts what was created, updated and patched, by plural."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._versions = itertools.count(1)
        self._watchers: dict[str, list[asyncio.Queue[Object]]] = {}
        self.writes: list[tuple[str, str]] = []
        self.refuses: set[str] = set()

    def put(self, resource: Resource, body: Object) -> Object:
        """Store it, as somebody else would."""
        metadata = body["metadata"]
        key = (resource.plural, metadata.get("namespace", ""), metadata["name"])
        uid = self._objects.get(key, {}).get("metadata", {}).get("uid") or f"uid-{next(self._versions)}"
        stored = {**body, "metadata": {**metadata, "uid": uid, "resourceVersion": str(next(self._versions))}}
        kind = "MODIFIED" if key in self._objects else "ADDED"
        self._objects[key] = stored
        self._tell(resource, kind, stored)
        return stored

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        gone = self._objects.pop((resource.plural, namespace, name))
        self._tell(resource, "DELETED", gone)

    def stored(self, resource: Resource, name: str, namespace: str = "") -> Any:
        return self._objects.get((resource.plural, namespace, name))

    def _tell(self, resource: Resource, kind: str, body: Object) -> None:
        for queue in self._watchers.get(resource.plural, []):
            queue.put_nowait({"type": kind, "object": body})

    # -- as a client sees it

    async def version(self) -> str:
        return "v1.36.2"

    async def create(self, resource: Resource, body: Object, *, into: type[Any]) -> Any:
        metadata = body["metadata"]
        self._refuse(resource)
        if (resource.plural, metadata.get("namespace", ""), metadata["name"]) in self._objects:
            raise AlreadyExistsError("it is there", status=409)
        self.writes.append(("create", resource.plural))
        return msgspec.convert(self.put(resource, body), into)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        *,
        subresource: str | None = None,
    ) -> None:
        self._refuse(resource)
        current = self._objects[resource.plural, namespace or "", name]
        if isinstance(patch, dict):
            if patch["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
                raise ConflictError("it has changed", status=409)
            self.writes.append(("update", resource.plural))
            data = {**current.get("data", {}), **patch["data"]}
            self.put(resource, {**current, "data": {key: value for key, value in data.items() if value is not None}})
            return
        self.writes.append(("patch", resource.plural))
        operations = [one for one in patch if one["op"] != "test"]
        assert len(operations) < len(patch), "a patch by position says which element it means"
        self.put(resource, patched(current, operations))

    def _refuse(self, resource: Resource) -> None:
        if resource.plural in self.refuses:
            raise RefusedByServerError("forbidden", status=403)

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
        *,
        into: type[Any],
    ) -> tuple[tuple[Any, ...], str]:
        bodies = [body for key, body in self._objects.items() if key[0] == resource.plural]
        return tuple(msgspec.convert(body, into) for body in bodies if _matches(body, namespace, query or {})), "0"

    async def stream(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        *,
        silent_seconds: float,
        only_metadata: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[Object] = asyncio.Queue()
        watchers = self._watchers.setdefault(resource.plural, [])
        watchers.append(queue)
        with contextlib.ExitStack() as leaving:
            leaving.callback(watchers.remove, queue)
            while True:
                event = await queue.get()
                if _matches(event["object"], namespace, query):
                    yield msgspec.json.encode(event)


def _matches(body: Object, namespace: str | None, query: Mapping[str, str]) -> bool:
    wanted = query.get("fieldSelector", "")
    metadata = body["metadata"]
    return wanted in {"", f"metadata.name={metadata['name']}"} and namespace in {None, metadata.get("namespace")}
