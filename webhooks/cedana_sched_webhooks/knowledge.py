"""What the webhooks know: mirrors of a few kinds, and what must be found by something else than its name.

Nothing here asks the API server; an admission call only looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec
from pydantic import ValidationError

from cedana_sched.kube.client import Api
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, NAMESPACES, NODES, PREEMPTION_HOLDS
from cedana_sched.kube.watching import HasMetadata, Key, Mirror, Watch
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import CheckpointPolicySpec
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_webhooks.identity import Replica
from cedana_sched_webhooks.objects import Checkpoint, Policy, PreemptionHold

T = TypeVar("T", bound=HasMetadata)
T_co = TypeVar("T_co", covariant=True)

DEFAULT_POLICY = "default"


class Shelf(Protocol[T_co]):
    """Objects by name: a mirror."""

    def get(self, name: str, namespace: str = "") -> T_co | None: ...

    def __iter__(self) -> Iterator[T_co]: ...


class Index(Generic[T]):
    """Objects by something in them; `note` is a mirror's sink."""

    def __init__(self, key: Callable[[T], Hashable | None]) -> None:
        self._key = key
        self._found: dict[Hashable, dict[Key, T]] = {}

    def note(self, before: T | None, now: T | None) -> None:
        for gone in () if before is None else (before,):
            key = self._key(gone)
            among = self._found.get(key, {})
            among.pop((gone.metadata.namespace, gone.metadata.name), None)
            if not among:
                self._found.pop(key, None)
        if now is not None and (key := self._key(now)) is not None:
            self._found.setdefault(key, {})[now.metadata.namespace, now.metadata.name] = now

    def get(self, key: Hashable) -> tuple[T, ...]:
        return tuple(self._found.get(key, {}).values())


class Knowledge(msgspec.Struct, frozen=True):
    """All that an admission call may look at."""

    namespaces: Shelf[PartialObject]
    nodes: Shelf[PartialObject]
    policies: Shelf[Policy]
    checkpoints: Index[Checkpoint]
    checkpoints_by_id: Index[Checkpoint]
    holds: Index[PreemptionHold]

    def checkpoints_of(self, namespace: str, replica: Replica) -> tuple[Checkpoint, ...]:
        return self.checkpoints.get((namespace, replica.id, replica.index))

    def checkpoints_of_id(self, namespace: str, identifier: str) -> tuple[Checkpoint, ...]:
        return self.checkpoints_by_id.get((namespace, identifier))

    def holds_of(self, uid: str) -> tuple[PreemptionHold, ...]:
        """Holds of the object with this uid."""
        return self.holds.get(uid)

    def policy(self, name: str | None) -> CheckpointPolicy:
        """The policy of that name; without one the policy called `default`, else what is built in.

        Raises:
            UsageError: there is none of that name, or it cannot be read.
        """
        field = f"metadata.annotations[{names.POLICY}]"
        found = self.policies.get(name or DEFAULT_POLICY)
        if found is None and not name:
            return CheckpointPolicy()
        if found is None:
            remedy = "name a CheckpointPolicy of this cluster, or leave the annotation out"
            raise UsageError(field, name, "is no CheckpointPolicy", remedy=remedy)
        try:
            return CheckpointPolicySpec.model_validate(found.spec)
        except ValidationError as error:
            remedy = f"correct it: kubectl edit checkpointpolicy {found.metadata.name}"
            raise UsageError(field, found.metadata.name, "is a policy that cannot be read", remedy=remedy) from error


def checkpoint_key(checkpoint: Checkpoint) -> Hashable:
    identity = checkpoint.spec.identity
    return checkpoint.metadata.namespace, identity.id, identity.index


def id_key(checkpoint: Checkpoint) -> Hashable:
    return checkpoint.metadata.namespace, checkpoint.spec.identity.id


def hold_key(hold: PreemptionHold) -> Hashable | None:
    return hold.spec.held.uid if hold.spec.held is not None else None


def index_checkpoints() -> Index[Checkpoint]:
    return Index(checkpoint_key)


def index_checkpoints_by_id() -> Index[Checkpoint]:
    return Index(id_key)


def index_holds() -> Index[PreemptionHold]:
    return Index(hold_key)


class Mirrors:
    """Keeps the knowledge up to date: run `run` as a task."""

    def __init__(self, api: Api) -> None:
        namespaces = Mirror(Watch(api, NAMESPACES, PartialObject))
        nodes = Mirror(Watch(api, NODES, PartialObject))
        policies = Mirror(Watch(api, CHECKPOINT_POLICIES, Policy))
        checkpoints = Mirror(Watch(api, CHECKPOINTS, Checkpoint))
        holds = Mirror(Watch(api, PREEMPTION_HOLDS, PreemptionHold))
        indices = index_checkpoints(), index_checkpoints_by_id(), index_holds()
        self.knowledge = Knowledge(namespaces, nodes, policies, *indices)
        checkpoints.subscribe(self.knowledge.checkpoints.note)
        checkpoints.subscribe(self.knowledge.checkpoints_by_id.note)
        holds.subscribe(self.knowledge.holds.note)
        self._synced = [one.synced for one in (namespaces, nodes, policies, checkpoints, holds)]
        self._runs = [one.run for one in (namespaces, nodes, policies, checkpoints, holds)]

    @property
    def synced(self) -> bool:
        """Whether every kind has been listed once."""
        return all(event.is_set() for event in self._synced)

    async def run(self) -> None:
        """Follow the watches for ever."""
        async with asyncio.TaskGroup() as tasks:
            for run in self._runs:
                tasks.create_task(run(), name="mirror")
