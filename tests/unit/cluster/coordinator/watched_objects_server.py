"""An API server in memory with watches, selectors and faults: what coordinator and agents together ask of one."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from random import Random
from typing import Any, TypeVar, cast

import msgspec

from cedana_sched.adapter.conformance.fake_api import ListsInMemory
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import (
    AbsentError,
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    RefusedByServerError,
    error_of,
)
from cedana_sched.kube.resources import Resource

T = TypeVar("T")
Key = tuple[str, str, str]

CONFIG_MAP_BYTES = 1 << 20
"""The API server's own limit of a ConfigMap's data."""
LATE_TURNS = 200
"""Of the loop, in which all is done that waits for nothing else."""
REFUSALS = (400, 401, 403, 404, 409, 422, 429, 500, 503, 504)


class WatchedObjectsServer(ListsInMemory):
    """The requests of `kube.client.Api`; `api` is it, by its type.

    Args:
        dice: decides which writes are refused (`fault_rate`): with nothing done, or done and the answer lost.
    """

    def __init__(self, dice: Random | None = None, fault_rate: float = 0.0) -> None:
        self.objects: dict[Key, Object] = {}
        self.version = 0
        self.writes: Counter[tuple[str, str]] = Counter()
        """Writes that arrived, by verb and kind."""
        self.log: list[tuple[str, str, Object]] = []
        """Of each write that was done its verb, the object's name, and what was sent."""
        self.refusing: dict[str, int] = {}
        """By kind: the status with which every write of it is refused."""
        self.late: set[str] = set()
        """Kinds that are listed after `LATE_TURNS`."""
        self.workload_gone: dict[str, tuple[int, bytes]] = {}
        """By namespace: how each create in it is answered."""
        self._dice, self.fault_rate = dice or Random(0), fault_rate
        self._written = asyncio.Event()
        self._watches: list[tuple[str, str | None, Mapping[str, str], asyncio.Queue[Object]]] = []

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; looked at after every write."""
        while not holds():
            self._written.clear()
            await self._written.wait()

    @property
    def api(self) -> Api:
        return cast("Api", self)

    def of_kind(self, kind: str) -> list[Object]:
        return [body for (one, _, _), body in self.objects.items() if one == kind]

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """As somebody else would, whatever its finalizers say."""
        key = (resource.kind, namespace, name)
        before = self.objects.pop(key)
        self._tell(key, before, None)

    def put(self, resource: Resource, body: Object) -> None:
        """As somebody else would."""
        key = _key(resource, body["metadata"]["name"], body["metadata"].get("namespace"))
        self._store(key, copy.deepcopy(body))

    # -- as a client sees it

    async def get(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T:
        await asyncio.sleep(0)
        return self._as(self._stored(resource, name, namespace), into)

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T | None:
        try:
            return await self.get(resource, name, namespace, into=into)
        except AbsentError:
            return None

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        lost = await self._arrive("create", resource)
        key = _key(resource, body["metadata"]["name"], body["metadata"].get("namespace"))
        if (answer := self.workload_gone.get(key[1])) is not None:
            raise error_of(f"create {resource.plural}", *answer)
        if key in self.objects:
            raise AlreadyExistsError(f"{key} exists", status=409, reason="AlreadyExists")
        _check_size(resource, body)
        stored = copy.deepcopy(body)
        stored.pop("status", None)
        self.log.append(("create", key[2], stored))
        self._store(key, stored)
        return self._answer(lost, key, into)

    async def update(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        lost = await self._arrive("update", resource)
        key = _key(resource, body["metadata"]["name"], body["metadata"].get("namespace"))
        _check_version(self._stored(resource, key[2], key[1]), body)
        _check_size(resource, body)
        self.log.append(("update", key[2], body))
        self._store(key, copy.deepcopy(body))
        return self._answer(lost, key, into)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object,
        *,
        subresource: str | None = None,
    ) -> None:
        lost = await self._arrive("patch", resource)
        key = _key(resource, name, namespace)
        stored = copy.deepcopy(self._stored(resource, name, namespace))
        _check_version(stored, patch)
        assert subresource == "status" or "status" not in patch
        _merge(stored, copy.deepcopy({part: told for part, told in patch.items() if part != "metadata"}))
        metadata = {part: told for part, told in patch.get("metadata", {}).items() if part != "resourceVersion"}
        _merge(stored["metadata"], copy.deepcopy(metadata))
        self.log.append(("patch", name, patch))
        if stored != self.objects[key]:  # a write that changes nothing makes no version
            self._store(key, stored)
        self._answer(lost, key, dict)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> None:
        lost = await self._arrive("delete", resource, but=404)
        key = _key(resource, name, namespace)
        if (stored := self.objects.get(key)) is None:
            return
        if uid not in {None, stored["metadata"]["uid"]}:
            raise ConflictError("another one", status=409, reason="Conflict")
        self.log.append(("delete", name, {}))
        self._tell(key, self.objects.pop(key), None)
        if lost:
            raise ApiUnavailableError("the answer was lost")

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: type[T]
    ) -> tuple[tuple[T, ...], str]:
        for _ in range(LATE_TURNS if resource.kind in self.late else 1):
            await asyncio.sleep(0)
        found = [
            body for key, body in self.objects.items() if key[0] == resource.kind and _selected(body, namespace, query)
        ]
        return tuple(self._as(body, into) for body in found), str(self.version)

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
        watch = (resource.kind, namespace, query, queue)
        if int(query["resourceVersion"]) < self.version:  # what has changed since the list
            for key, body in self.objects.items():
                changed = int(body["metadata"]["resourceVersion"]) > int(query["resourceVersion"])
                if key[0] == resource.kind and changed and _selected(body, namespace, query):
                    queue.put_nowait({"type": "MODIFIED", "object": copy.deepcopy(body)})
        self._watches.append(watch)
        try:
            while True:
                yield msgspec.json.encode(await queue.get())
        finally:
            self._watches.remove(watch)

    # -- within

    async def _arrive(self, verb: str, resource: Resource, but: int = 0) -> bool:
        """Whether the answer will be lost."""
        await asyncio.sleep(0)
        self.writes[verb, resource.kind] += 1
        call = f"{verb} {resource.plural}"
        if (status := self.refusing.get(resource.kind)) is not None:
            raise error_of(call, status, b"refused by the test")
        if self._dice.random() >= self.fault_rate:
            return False
        kind = self._dice.randrange(3)
        if kind == 0:
            raise ApiUnavailableError(f"{call}: the connection broke")
        if kind == 1:
            raise error_of(call, self._dice.choice([one for one in REFUSALS if one != but]), b"not now")
        return True

    def _answer(self, lost: bool, key: Key, into: type[T]) -> T:
        if lost:
            raise ApiUnavailableError("the answer was lost")
        return self._as(self.objects[key], into)

    def _stored(self, resource: Resource, name: str, namespace: str | None) -> Object:
        try:
            return self.objects[_key(resource, name, namespace)]
        except KeyError:
            raise AbsentError(f"no {resource.kind} {namespace}/{name}", status=404, reason="NotFound") from None

    def _store(self, key: Key, stored: Object) -> None:
        self.version += 1
        self._written.set()
        before = self.objects.get(key)
        uid = before["metadata"]["uid"] if before else stored["metadata"].get("uid") or f"uid-{self.version}"
        stored["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.objects[key] = stored
        self._tell(key, before, stored)

    def _tell(self, key: Key, before: Object | None, now: Object | None) -> None:
        """As the API server's watch cache does: what leaves a selector is deleted for who watches by it."""
        for kind, namespace, query, queue in self._watches:
            if kind != key[0]:
                continue
            was = before is not None and _selected(before, namespace, query)
            is_now = now is not None and _selected(now, namespace, query)
            if is_now:
                queue.put_nowait({"type": "MODIFIED" if was else "ADDED", "object": copy.deepcopy(now)})
            elif was:
                gone = copy.deepcopy(before or {})
                gone["metadata"]["resourceVersion"] = str(self.version)
                queue.put_nowait({"type": "DELETED", "object": gone})

    def _as(self, body: Object, into: type[T]) -> T:
        return msgspec.json.decode(msgspec.json.encode(body), type=into)


def _key(resource: Resource, name: str, namespace: str | None) -> Key:
    return resource.kind, namespace or "", name


def _check_version(stored: Object, written: Object) -> None:
    wanted = written.get("metadata", {}).get("resourceVersion")
    if wanted is not None and wanted != stored["metadata"]["resourceVersion"]:
        raise ConflictError("changed", status=409, reason="Conflict")


def _check_size(resource: Resource, body: Object) -> None:
    if resource.kind == "ConfigMap":
        data = [*body.get("data", {}).values(), *body.get("binaryData", {}).values()]
        if sum(len(one) * 3 // 4 for one in data) > CONFIG_MAP_BYTES:
            raise RefusedByServerError(f"must have at most {CONFIG_MAP_BYTES} bytes", status=422, reason="Invalid")


def _selected(body: Object, namespace: str | None, query: Mapping[str, str] | None) -> bool:
    labels: dict[str, str] = body["metadata"].get("labels") or {}
    if namespace not in {None, body["metadata"].get("namespace")}:
        return False
    for wish in filter(None, (query or {}).get("labelSelector", "").split(",")):
        if wish.startswith("!"):
            holds = wish[1:] not in labels
        elif "!=" in wish:
            name, _, value = wish.partition("!=")
            holds = labels.get(name) != value
        else:
            name, _, value = wish.partition("=")
            holds = labels.get(name) == value
        if not holds:
            return False
    return True


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """RFC 7386."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            into = target.get(name)
            target[name] = into if isinstance(into, dict) else {}
            _merge(target[name], value)
        else:
            target[name] = value
