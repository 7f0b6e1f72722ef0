"""Caches of the webhooks: informers of a few kinds, with indices for lookups by anything but the name.

Admission handlers read only these caches, and call no API server; except `siblings`, for the Jobs of some pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from cedana_sched.eviction_holds.preemptions import Preemptions
from cedana_sched.kube.client import Api
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.own_kinds.checkpoint import Checkpoint
from cedana_sched.kube.own_kinds.checkpoint_policy import PolicyObject
from cedana_sched.kube.own_kinds.preemption_hold import PreemptionHold
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, NAMESPACES, NODES, PREEMPTION_HOLDS
from cedana_sched.kube.watching import Informer, Watch, awaited
from cedana_sched.model.deadline_cap import capped
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import DEFAULT, CheckpointPolicySpec, Counting, counting, read_spec
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, CheckpointPolicy
from cedana_sched.model.served import EVERYWHERE, Served
from cedana_sched_webhooks.restart_rules import has_restart_rules

T_co = TypeVar("T_co", covariant=True)


class Shelf(Protocol[T_co]):
    """Objects by name: an informer."""

    def get(self, name: str, namespace: str = "") -> T_co | None: ...

    def __iter__(self) -> Iterator[T_co]: ...


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
