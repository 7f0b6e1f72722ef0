"""Objects as an API server keeps them: versions, preconditions, status subresources, finalizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import AbsentError, AlreadyExistsError, ConflictError, RefusedByServerError
from cedana_sched.kube.resources import CONFIG_MAPS, Resource
from cedana_sched.testing.patches import apply_json_patch, merge

Key = tuple[Resource, str, str]
"""Kind, namespace (empty: none) and name of an object."""

CONFIG_MAP_BYTES = 1 << 20
"""Limit of a ConfigMap's data."""
DELETED_AT = "2026-11-21T12:00:00Z"
_OF_THE_SERVER = ("uid", "deletionTimestamp")
"""Metadata that no client changes."""


class Change(NamedTuple):
    """One write: the object before (None: it was created) and after (None: it is gone)."""

    version: int
    key: Key
    before: Object | None
    now: Object | None


class ObjectStore:
    """Objects by kind, namespace and name. Every write that changes something takes the next `version`.

    No field is validated, and no kubelet ends pods: what is deleted is gone at once unless it has finalizers.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.version = 1
        self._sinks: list[Callable[[Change], None]] = []

    def subscribe(self, sink: Callable[[Change], None]) -> None:
        """Call `sink` on every change."""
        self._sinks.append(sink)

    # -- whatever a client may and may not do

    def put(self, resource: Resource, body: Object) -> Object:
        """Create or replace an object, status and all; an object that exists keeps its uid."""
        body = copy.deepcopy(body)
        key, metadata = key_of(resource, body), body["metadata"]
        before = self.objects.get(key)
        metadata.setdefault("uid", before["metadata"]["uid"] if before else f"uid-{self.version + 1}")
        return self._write(key, body)

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """Remove an object, if it exists, whatever its finalizers."""
        key = (resource, namespace or "", name)
        if (gone := self.objects.pop(key, None)) is not None:
            self._publish(key, gone, None)

    # -- as a client's requests are answered

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Raises AbsentError."""
        if (found := self.objects.get((resource, namespace or "", name))) is None:
            message = f'{resource.plural} "{name}" not found in {namespace or "the cluster"}'
            raise AbsentError(message, status=404, reason="NotFound")
        return found

    def create(self, resource: Resource, body: Object) -> Object:
        """Create an object, without its status; raises AlreadyExistsError."""
        key = key_of(resource, body)
        if key in self.objects:
            message = f'{resource.plural} "{key[2]}" already exists'
            raise AlreadyExistsError(message, status=409, reason="AlreadyExists")
        made = copy.deepcopy({name: value for name, value in body.items() if name != "status"})
        made["metadata"]["uid"] = f"uid-{self.version + 1}"
        _check_size(resource, made)
        return self._write(key, made)

    def update(self, resource: Resource, body: Object) -> Object:
        """Replace all but the status; raises ConflictError, AbsentError."""
        metadata = body["metadata"]
        before = self.get(resource, metadata["name"], metadata.get("namespace"))
        _check_preconditions(before, metadata)
        now = copy.deepcopy({name: value for name, value in body.items() if name != "status"})
        if "status" in before:
            now["status"] = before["status"]
        return self._replace(key_of(resource, body), before, now)

    def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        subresource: str | None = None,
    ) -> Object:
        """Apply a merge patch or a JSON patch to the status, or to all else."""
        before = self.get(resource, name, namespace)
        if isinstance(patch, dict):
            _check_preconditions(before, patch.get("metadata") or {})
            now = copy.deepcopy(before)
            merge(now, patch)
        else:
            try:
                now = apply_json_patch(before, patch)
            except (LookupError, ValueError) as error:
                message = f"the server rejected our request due to an error in our request: {error}"
                raise RefusedByServerError(message, status=422, reason="Invalid") from error
        keeps, others = (before, now) if subresource == "status" else (now, before)
        whole = {name: value for name, value in keeps.items() if name != "status"}
        if "status" in others:
            whole["status"] = others["status"]
        return self._replace((resource, namespace or "", name), before, whole)

    def delete(self, resource: Resource, name: str, namespace: str | None = None, uid: str | None = None) -> None:
        """Remove an object, or mark it as deleted while it has finalizers; raises ConflictError, AbsentError."""
        before = self.get(resource, name, namespace)
        _check_preconditions(before, {} if uid is None else {"uid": uid})
        if not before["metadata"].get("finalizers"):
            self.remove(resource, name, namespace)
        elif "deletionTimestamp" not in before["metadata"]:
            metadata = {**before["metadata"], "deletionTimestamp": DELETED_AT}
            self._write((resource, namespace or "", name), {**before, "metadata": metadata})

    def _replace(self, key: Key, before: Object, now: Object) -> Object:
        was = before["metadata"]
        metadata = {name: value for name, value in now["metadata"].items() if name not in _OF_THE_SERVER}
        metadata |= {name: was[name] for name in _OF_THE_SERVER if name in was}
        added = set(metadata.get("finalizers") or ()) - set(was.get("finalizers") or ())
        if added and "deletionTimestamp" in was:
            message = "metadata.finalizers: no new finalizers can be added if the object is being deleted"
            raise RefusedByServerError(message, status=422, reason="Invalid")
        _check_size(key[0], now)
        written = self._write(key, {**now, "metadata": metadata})
        if "deletionTimestamp" in metadata and was.get("finalizers") and not metadata.get("finalizers"):
            self.remove(key[0], key[2], key[1])
        return written

    def _write(self, key: Key, body: Object) -> Object:
        before = self.objects.get(key)
        if before is not None:
            body["metadata"]["resourceVersion"] = before["metadata"].get("resourceVersion")
            if body == before:
                return before  # a write that changes nothing takes no version
        body["metadata"]["resourceVersion"] = str(self.version + 1)
        self.objects[key] = body
        self._publish(key, before, body)
        return body

    def _publish(self, key: Key, before: Object | None, now: Object | None) -> None:
        self.version += 1
        for sink in self._sinks:
            sink(Change(self.version, key, before, now))


def key_of(resource: Resource, body: Object) -> Key:
    metadata = body["metadata"]
    return resource, metadata.get("namespace") or "", metadata["name"]


def _check_preconditions(stored: Object, wanted: Object) -> None:
    for field in ("uid", "resourceVersion"):
        there = stored["metadata"].get(field)
        if wanted.get(field) not in {None, there}:
            raise ConflictError(f"{field} is {there}, not {wanted[field]}", status=409, reason="Conflict")


def _check_size(resource: Resource, body: Object) -> None:
    if resource == CONFIG_MAPS:
        size = sum(map(len, (body.get("data") or {}).values()))
        size += sum(len(value) * 3 // 4 for value in (body.get("binaryData") or {}).values())
        if size > CONFIG_MAP_BYTES:
            raise RefusedByServerError(f"must have at most {CONFIG_MAP_BYTES} bytes", status=422, reason="Invalid")
