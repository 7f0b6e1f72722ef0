"""What the webhooks know: mirrors of a few kinds, and what must be found by something else than its name.

An admission call only looks here, and nothing calls the API server for it; `siblings` alone does, for some pods' Jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from cedana_sched.kube.client import Api
from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, NAMESPACES, NODES, PREEMPTION_HOLDS
from cedana_sched.kube.watching import Informer, Watch, awaited
from cedana_sched.model.deadline_cap import capped
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import DEFAULT, CheckpointPolicySpec, Counting, counting, read_spec
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, CheckpointPolicy
from cedana_sched.model.served import EVERYWHERE, Served
from cedana_sched_webhooks.identity import Replica
from cedana_sched_webhooks.objects import Checkpoint, HoldWithin, Policy, PreemptionHold
from cedana_sched_webhooks.pods_being_saved import PodsBeingSaved
from cedana_sched_webhooks.restart_rules import has_restart_rules

T_co = TypeVar("T_co", covariant=True)


class Shelf(Protocol[T_co]):
    """Objects by name: a mirror."""

    def get(self, name: str, namespace: str = "") -> T_co | None: ...

    def __iter__(self) -> Iterator[T_co]: ...


class Preemptions:
    """Checkpoints and PreemptionHolds, by whom they are of. Whoever follows them notes their changes.

    Args:
        longest_seconds: no hold counts for longer, whatever stands in it.
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
        """A mirror's sink."""
        for index in (self._of_replica, self._of_id, self._of_pod):
            index.note(before, now)

    def note_hold(self, before: PreemptionHold | None, now: PreemptionHold | None) -> None:
        """A mirror's sink."""
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
        """Holds of the object with this uid: they are in its namespace."""
        return self._holds_of_object.of((namespace, uid))

    def holds_of_pod(self, namespace: str, uid: str) -> tuple[PreemptionHold, ...]:
        """Holds that wait, or have waited, for checkpoints of this pod: all of them are in its namespace."""
        signals = {checkpoint.spec.hold_uid for checkpoint in self._of_pod.of((namespace, uid))}
        return tuple(hold for signal in signals for hold in self._holds.of((namespace, signal)))

    def saves_pods(self, now: datetime, began_before: timedelta) -> bool:
        """Whether pods are being saved for a preemption that was taken up so long ago, or are just being evicted."""
        since = self._pods_being_saved.since(now)
        return since is not None and now - since > began_before


class Knowledge(Preemptions):
    """All that an admission call may look at."""

    def __init__(
        self,
        namespaces: Shelf[PartialObject],
        nodes: Shelf[PartialObject],
        policies: Shelf[Policy],
        longest_seconds: float = LONGEST_DEADLINE_SECONDS,
    ) -> None:
        super().__init__(longest_seconds)
        self.namespaces = namespaces
        self.nodes = nodes
        self.policies = policies
        self.has_restart_rules = False
        """Whether containers may have restart rules of their own; what nobody has said yet is not."""

    def policy(self, name: str | None, namespace: str) -> Counting:
        """The policy of that name, as far as the installation allows it, for pods of a namespace.

        Without a name `default`, else what is built in.

        Raises:
            UsageError: there is none of that name, it cannot be read, or it is not for that namespace.
        """
        if not name and self.policies.get(DEFAULT) is None:
            return Counting(capped(CheckpointPolicy(), self.longest_seconds))
        found = counting(name or DEFAULT, self.policy_spec(name or DEFAULT), namespace)
        return Counting(capped(found.policy, self.longest_seconds), found.withheld)

    def policy_spec(self, name: str) -> CheckpointPolicySpec:
        """What the policy of that name says.

        Raises:
            UsageError: there is none, or it cannot be read.
        """
        if (found := self.policies.get(name)) is None:
            field, remedy = f"metadata.annotations[{names.POLICY}]", "name a CheckpointPolicy of this cluster"
            raise UsageError(field, name, "is no CheckpointPolicy", remedy=f"{remedy}, or leave the annotation out")
        return read_spec(name, found.spec)


class Mirrors:
    """Keeps the knowledge up to date: run `run` as a task."""

    def __init__(
        self, api: Api, longest_seconds: float = LONGEST_DEADLINE_SECONDS, served: Served = EVERYWHERE
    ) -> None:
        namespaces = Informer(Watch(api, NAMESPACES, PartialObject))
        nodes = Informer(Watch(api, NODES, PartialObject))
        policies = Informer(Watch(api, CHECKPOINT_POLICIES, Policy))
        checkpoints = Informer(Watch(api, CHECKPOINTS, Checkpoint, within=served))
        holds = Informer(Watch(api, PREEMPTION_HOLDS, PreemptionHold, within=served))
        self.knowledge = Knowledge(namespaces, nodes, policies, longest_seconds)
        checkpoints.subscribe(self.knowledge.note_checkpoint)
        holds.subscribe(self.knowledge.note_hold)
        self._api = api
        self._informers: tuple[Informer[Any], ...] = (namespaces, nodes, policies, checkpoints, holds)

    @property
    def awaited(self) -> str | None:
        """What is not listed yet, and why; None once every kind has been."""
        return awaited(*self._informers)

    async def run(self) -> None:
        """Follow the watches for ever."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run(), name="mirror")
            tasks.create_task(self._read_version(), name="version of the API server")

    async def _read_version(self) -> None:
        for informer in self._informers:  # then the API server has its roles, too
            await informer.synced.wait()
        self.knowledge.has_restart_rules = await has_restart_rules(self._api)
