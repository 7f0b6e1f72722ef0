"""Caches of the webhooks: informers of a few kinds, with indices for lookups by anything but the name.

Admission handlers read only these caches, and call no API server; except `siblings`, for the Jobs of some pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from cedana_sched.kube.client import Api
from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.own_kinds.checkpoint import Checkpoint
from cedana_sched.kube.own_kinds.checkpoint_policy import PolicyObject
from cedana_sched.kube.own_kinds.preemption_hold import HoldWithin, PreemptionHold
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, NAMESPACES, NODES, PREEMPTION_HOLDS
from cedana_sched.kube.watching import Informer, Watch, awaited
from cedana_sched.model.deadline_cap import capped
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import DEFAULT, CheckpointPolicySpec, Counting, counting, read_spec
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, CheckpointPolicy
from cedana_sched.model.served import EVERYWHERE, Served
from cedana_sched_webhooks.identity import Replica
from cedana_sched_webhooks.pods_being_saved import PodsBeingSaved
from cedana_sched_webhooks.restart_rules import has_restart_rules

T_co = TypeVar("T_co", covariant=True)


class Shelf(Protocol[T_co]):
    """Objects by name: an informer."""

    def get(self, name: str, namespace: str = "") -> T_co | None: ...

    def __iter__(self) -> Iterator[T_co]: ...


class Preemptions:
    """Indices of Checkpoints and PreemptionHolds, fed by informers.

    Args:
        longest_seconds: cap on each hold, whatever its object contains.
    """

    def __init__(self, longest_seconds: float = LONGEST_DEADLINE_SECONDS) -> None:
        self.longest_seconds = longest_seconds
        self._of_replica: Index[tuple[str, str, int], Checkpoint] = Index(
            lambda one: (one.metadata.namespace, one.spec.identity.id, one.spec.identity.index)
        )
        self._of_id: Index[tuple[str, str], Checkpoint] = Index(
            lambda one: (one.metadata.namespace, one.spec.identity.id)
        )
        self._of_pod: Index[tuple[str, str], Checkpoint] = Index(
            lambda one: (one.metadata.namespace, one.spec.pod_ref.uid)
        )
        self._holds: Index[tuple[str, str], PreemptionHold] = Index(lambda one: (one.metadata.namespace, one.spec.uid))
        self._holds_of_object: Index[tuple[str, str], PreemptionHold] = Index(
            lambda one: (
                (one.metadata.namespace, one.spec.held_object_ref.uid) if one.spec.held_object_ref is not None else None
            )
        )
        self._pods_being_saved = PodsBeingSaved()

    def note_checkpoint(self, before: Checkpoint | None, now: Checkpoint | None) -> None:
        """Sink of an informer."""
        for index in (self._of_replica, self._of_id, self._of_pod):
            index.note(before, now)

    def note_hold(self, before: PreemptionHold | None, now: PreemptionHold | None) -> None:
        """Sink of an informer."""
        if now is not None:
            now = HoldWithin(now.metadata, now.spec, now.status, self.longest_seconds)
        for index in (self._holds, self._holds_of_object):
            index.note(before, now)
        self._pods_being_saved.note(before, now)

    def checkpoints_of(self, namespace: str, replica: Replica) -> tuple[Checkpoint, ...]:
        return self._of_replica.of((namespace, replica.id, replica.index))

    def checkpoints_of_id(self, namespace: str, identifier: str) -> tuple[Checkpoint, ...]:
        return self._of_id.of((namespace, identifier))

    def holds_of(self, namespace: str, uid: str) -> tuple[PreemptionHold, ...]:
        """Return the holds of the object with this uid; they are in its namespace."""
        return self._holds_of_object.of((namespace, uid))

    def holds_of_pod(self, namespace: str, uid: str) -> tuple[PreemptionHold, ...]:
        """Return holds that wait, or have waited, for checkpoints of this pod; all are in its namespace."""
        signals = {checkpoint.spec.hold_uid for checkpoint in self._of_pod.of((namespace, uid))}
        return tuple(hold for signal in signals for hold in self._holds.of((namespace, signal)))

    def saves_pods(self, now: datetime, began_before: timedelta) -> bool:
        """Whether pods are being saved or evicted for a preemption that began more than `began_before` ago."""
        since = self._pods_being_saved.since(now)
        return since is not None and now - since > began_before


class Knowledge(Preemptions):
    """All caches that admission handlers may read."""

    def __init__(
        self,
        namespaces: Shelf[PartialObject],
        nodes: Shelf[PartialObject],
        policies: Shelf[PolicyObject],
        longest_seconds: float = LONGEST_DEADLINE_SECONDS,
    ) -> None:
        super().__init__(longest_seconds)
        self.namespaces = namespaces
        self.nodes = nodes
        self.policies = policies
        self.has_restart_rules = False
        """Whether containers may have restart rules of their own; False until the version is read."""

    def policy(self, name: str | None, namespace: str) -> Counting:
        """Return the policy of that name for pods of a namespace, capped by the installation.

        Without a name: `default`, else the built-in policy.

        Raises:
            UsageError: the policy does not exist, cannot be read, or is not allowed in that namespace.
        """
        if not name and self.policies.get(DEFAULT) is None:
            return Counting(capped(CheckpointPolicy(), self.longest_seconds))
        found = counting(name or DEFAULT, self.policy_spec(name or DEFAULT), namespace)
        return Counting(capped(found.policy, self.longest_seconds), found.withheld)

    def policy_spec(self, name: str) -> CheckpointPolicySpec:
        """Return the spec of the policy of that name.

        Raises:
            UsageError: it does not exist, or cannot be read.
        """
        if (found := self.policies.get(name)) is None:
            field, remedy = f"metadata.annotations[{names.POLICY}]", "name a CheckpointPolicy of this cluster"
            raise UsageError(field, name, "is no CheckpointPolicy", remedy=f"{remedy}, or leave the annotation out")
        return read_spec(name, found.spec)


class Mirrors:
    """Keeps the caches current. Run `run` as a task."""

    def __init__(
        self, api: Api, longest_seconds: float = LONGEST_DEADLINE_SECONDS, served: Served = EVERYWHERE
    ) -> None:
        namespaces = Informer(Watch(api, NAMESPACES, PartialObject))
        nodes = Informer(Watch(api, NODES, PartialObject))
        policies = Informer(Watch(api, CHECKPOINT_POLICIES, PolicyObject))
        checkpoints = Informer(Watch(api, CHECKPOINTS, Checkpoint, within=served))
        holds = Informer(Watch(api, PREEMPTION_HOLDS, PreemptionHold, within=served))
        self.knowledge = Knowledge(namespaces, nodes, policies, longest_seconds)
        checkpoints.subscribe(self.knowledge.note_checkpoint)
        holds.subscribe(self.knowledge.note_hold)
        self._api = api
        self._informers: tuple[Informer[Any], ...] = (namespaces, nodes, policies, checkpoints, holds)

    @property
    def awaited(self) -> str | None:
        """What has not synced yet, and why; None once every kind has."""
        return awaited(*self._informers)

    async def run(self) -> None:
        """Run the informers forever."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run(), name="mirror")
            tasks.create_task(self._read_version(), name="version of the API server")

    async def _read_version(self) -> None:
        for informer in self._informers:  # a synced cache proves that RBAC is effective, too
            await informer.synced.wait()
        self.knowledge.has_restart_rules = await has_restart_rules(self._api)
