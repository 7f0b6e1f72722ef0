"""Objects that Kueue suspends, and which pods are theirs: by owner references, through any kinds that are followed.

A Job owns its pods, a JobSet owns Jobs, a TrainJob owns a JobSet. Kueue manages the topmost, and the pods name the
lowest only. Any client may write owner references, so chains stay within a namespace, and have a longest length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import Condition, Metadata, Pod
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.watching import HasMetadata, Informer
from cedana_sched_kueue.managed_kinds import has_identity, read_suspended

LONGEST_CHAIN: Final = 8
"""Objects from a pod's controller to the object that Kueue suspends."""
_NO_SPEC: Final = msgspec.Raw(b"{}")
_ENDED: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions of a terminal object: of Job, JobSet, Kubeflow's jobs and TrainJob. Others end by their Workload's."""


class ObjectStatus(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class ManagedObject(msgspec.Struct, frozen=True, rename="camel"):
    """An object of any followed kind. `spec` is reduced to `suspended` and `names_identity`."""

    metadata: Metadata
    spec: msgspec.Raw = _NO_SPEC
    status: ObjectStatus = ObjectStatus()
    suspended: bool = False
    names_identity: bool = False
    """Whether a template of its pods names an id."""

    def __post_init__(self) -> None:
        """Read the spec, and drop it."""
        if self.spec != _NO_SPEC:
            msgspec.structs.force_setattr(self, "suspended", read_suspended(self.spec))
            msgspec.structs.force_setattr(self, "names_identity", has_identity(self.spec))
            msgspec.structs.force_setattr(self, "spec", _NO_SPEC)

    @property
    def ended(self) -> bool:
        """Whether it is being deleted, or has completed or failed."""
        return self.metadata.deletion_timestamp is not None or any(
            one.type in _ENDED and one.status == "True" for one in self.status.conditions
        )


def own_uid(one: HasMetadata) -> str:
    return one.metadata.uid


def owner_uid(one: HasMetadata) -> str | None:
    """Return the uid of its controller; None if it has none."""
    owner = one.metadata.controller_reference
    return owner.uid if owner else None


class ManagedObjects:
    """The objects of all followed kinds by uid and by controller, kept by their informers."""

    def __init__(self, informers: Mapping[Resource, Informer[ManagedObject]]) -> None:
        self._objects: dict[str, tuple[Resource, ManagedObject]] = {}
        self._owned: dict[str, dict[str, None]] = {}
        """By uid of the controller: uids of its objects, in the order in which they came."""
        for resource, informer in informers.items():
            for one in informer:
                self._on_object_change(resource, None, one)
            informer.subscribe(partial(self._on_object_change, resource))

    def __iter__(self) -> Iterator[ManagedObject]:
        return (one for _, one in tuple(self._objects.values()))

    def find(self, uid: str) -> ManagedObject | None:
        """Return the object of this uid while it exists."""
        found = self._objects.get(uid)
        return None if found is None else found[1]

    def resource_of(self, uid: str) -> Resource | None:
        """Return the resource of the object of this uid while it exists."""
        found = self._objects.get(uid)
        return None if found is None else found[0]

    def owners_of(self, pod: Pod) -> Iterator[str]:
        """Yield the uids of the pod's controller, of that object's controller, and so on; the first may be unknown."""
        uid = owner_uid(pod)
        for _ in range(LONGEST_CHAIN):
            if uid is None:
                return
            yield uid
            one = self.find(uid)
            uid = owner_uid(one) if one is not None and one.metadata.namespace == pod.metadata.namespace else None

    def owned_by(self, root: ManagedObject) -> tuple[str, ...]:
        """Return the uids of the object and of the objects below it, of its namespace."""
        found = {root.metadata.uid: None}
        level: Iterable[str] = found.copy()
        for _ in range(LONGEST_CHAIN - 1):
            level = [uid for owner in level for uid in self._owned.get(owner, ()) if self._is_new(uid, root, found)]
            found |= dict.fromkeys(level)
        return tuple(found)

    def _is_new(self, uid: str, root: ManagedObject, found: Mapping[str, None]) -> bool:
        one = self.find(uid)
        return uid not in found and one is not None and one.metadata.namespace == root.metadata.namespace

    def _on_object_change(self, resource: Resource, before: ManagedObject | None, now: ManagedObject | None) -> None:
        if before is not None:
            self._objects.pop(before.metadata.uid, None)
            if (owner := owner_uid(before)) is not None and (owned := self._owned.get(owner)) is not None:
                owned.pop(before.metadata.uid, None)
                if not owned:
                    del self._owned[owner]
        if now is not None:
            self._objects[now.metadata.uid] = (resource, now)
            if (owner := owner_uid(now)) is not None:
                self._owned.setdefault(owner, {})[now.metadata.uid] = None
