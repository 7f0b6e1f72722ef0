"""An API server in memory, as far as the journal and its objects need one: versions, conflicts, status, crashes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import AbsentError, AlreadyExistsError, ApiUnavailableError, ConflictError
from cedana_sched.kube.resources import Resource

T = TypeVar("T")
Key = tuple[str, str, str]


class FakeApiServer:
    """The requests of `kube.client.Api` that the coordinator's journal makes."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.version = 0
        self.requests = 0
        self.fails: set[int] = set()
        """Numbers of the requests that are refused as unavailable; nothing of them is done."""
        self.answers_lost: set[int] = set()
        """Numbers of the requests that are done, and whose answer is lost."""

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T | None:
        try:
            return await self.get(resource, name, namespace, into=into)
        except AbsentError:
            return None

    async def get(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T:
        self._count()
        return self._as(self._stored(resource, name, namespace), into)

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        number = self._count()
        key = _key(resource, body["metadata"]["name"], body["metadata"].get("namespace"))
        if key in self.objects:
            raise AlreadyExistsError(f"{key} exists", status=409, reason="AlreadyExists")
        stored = copy.deepcopy(body)
        stored.pop("status", None)
        self.objects[key] = stored
        stored["metadata"]["uid"] = f"uid-{self.version}"
        return self._written(number, stored, into)

    async def update(self, resource: Resource, body: Object, *, into: type[T], subresource: str | None = None) -> T:
        assert subresource is None
        number = self._count()
        stored = self._stored(resource, body["metadata"]["name"], body["metadata"].get("namespace"))
        if (
            body["metadata"].get("resourceVersion", stored["metadata"]["resourceVersion"])
            != (stored["metadata"]["resourceVersion"])
        ):
            raise ConflictError("changed", status=409, reason="Conflict")
        stored.clear()
        stored.update(copy.deepcopy(body))
        return self._written(number, stored, into)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object,
        *,
        subresource: str | None = None,
    ) -> None:
        number = self._count()
        stored = self._stored(resource, name, namespace)
        assert subresource == "status" or "status" not in patch
        _merge(stored, copy.deepcopy(patch))
        self._written(number, stored, dict)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> None:
        assert uid is None
        self._count()
        self.objects.pop(_key(resource, name, namespace), None)

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: type[T]
    ) -> tuple[tuple[T, ...], str]:
        assert namespace is None
        self._count()
        absent = [one.removeprefix("!") for one in (query or {}).get("labelSelector", "").split(",")]
        found = [
            body
            for (kind, _, _), body in self.objects.items()
            if kind == resource.kind and not set(absent) & set(body["metadata"].get("labels", {}))
        ]
        return tuple(self._as(body, into) for body in found), str(self.version)

    def _count(self) -> int:
        self.requests += 1
        if self.requests in self.fails:
            raise ApiUnavailableError("no answer")
        return self.requests

    def _stored(self, resource: Resource, name: str, namespace: str | None) -> Object:
        try:
            return self.objects[_key(resource, name, namespace)]
        except KeyError:
            raise AbsentError(f"no {resource.kind} {namespace}/{name}", status=404) from None

    def _written(self, number: int, stored: Object, into: type[T]) -> T:
        self.version += 1
        stored["metadata"]["resourceVersion"] = str(self.version)
        if number in self.answers_lost:
            raise ApiUnavailableError("the answer was lost")
        return self._as(stored, into)

    def _as(self, body: Object, into: type[T]) -> T:
        return msgspec.json.decode(msgspec.json.encode(body), type=into)


def _key(resource: Resource, name: str, namespace: str | None) -> Key:
    return resource.kind, namespace or "", name


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """RFC 7386."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(name, {}), value)
        else:
            target[name] = value
