"""Caches of the webhooks: informers of a few kinds, with indices for lookups by anything but the name.

Admission handlers read only these caches, and call no API server; except `replica_numbers`, for the Jobs of some pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, NAMESPACES, NODES, PREEMPTION_HOLDS
from cedana_sched.kube.watching import Informer, Watch, first_unsynced_reason
from cedana_sched.model.deadline_cap import cap_deadlines
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import (
    DEFAULT,
    CheckpointPolicySpec,
    EffectivePolicy,
    PodDefaults,
    effective_policy,
    read_spec,
)
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, CheckpointPolicy
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched_webhooks.restart_rules_detection import has_restart_rules

T_co = TypeVar("T_co", covariant=True)


class NamedObjectReader(Protocol[T_co]):
    """Objects by name: an informer."""

    def get(self, name: str, namespace: str = "") -> T_co | None: ...

    def __iter__(self) -> Iterator[T_co]: ...


class AdmissionCaches(PreemptionIndex):
    """All caches that admission handlers may read."""

    def __init__(
        self,
        namespaces: NamedObjectReader[PartialObject],
        nodes: NamedObjectReader[PartialObject],
        policies: NamedObjectReader[CachedPolicy],
        longest_seconds: float = LONGEST_DEADLINE_SECONDS,
    ) -> None:
        super().__init__(longest_seconds)
        self.namespaces = namespaces
        self.nodes = nodes
        self.policies = policies
        self.has_restart_rules = False
        """Whether containers may have restart rules of their own; False until the version is read."""

    def policy_for_pods(self, name: str | None, namespace: str) -> EffectivePolicy:
        """Return the policy of that name for pods of a namespace, capped by the installation.

        Without a name: `default`, else the built-in policy.

        Raises:
            UsageError: the policy does not exist, cannot be read, or is not allowed in that namespace.
        """
        if not name and self.policies.get(DEFAULT) is None:
            return EffectivePolicy(cap_deadlines(CheckpointPolicy(), self.longest_seconds))
        found = effective_policy(name or DEFAULT, self.policy_spec(name or DEFAULT), namespace)
        return EffectivePolicy(cap_deadlines(found.policy, self.longest_seconds), found.withheld)

    def pod_defaults_for_pods(self, name: str | None) -> PodDefaults:
        """Return the `podDefaults` of the policy of that name; without a name as `policy_for_pods`.

        Raises:
            UsageError: the policy does not exist, or cannot be read.
        """
        if not name and self.policies.get(DEFAULT) is None:
            return PodDefaults()
        return self.policy_spec(name or DEFAULT).pod_defaults

    def policy_spec(self, name: str) -> CheckpointPolicySpec:
        """Return the spec of the policy of that name.

        Raises:
            UsageError: it does not exist, or cannot be read.
        """
        if (found := self.policies.get(name)) is None:
            field, remedy = f"metadata.annotations[{names.POLICY}]", "name a CheckpointPolicy of this cluster"
            raise UsageError(field, name, "is no CheckpointPolicy", remedy=f"{remedy}, or leave the annotation out")
        return read_spec(name, found.spec)


class CacheInformers:
    """Keeps the caches current. Run `run` as a task."""

    def __init__(
        self, api: Api, longest_seconds: float = LONGEST_DEADLINE_SECONDS, served: ServedNamespaces = EVERYWHERE
    ) -> None:
        namespaces = Informer(Watch(api, NAMESPACES, PartialObject))
        nodes = Informer(Watch(api, NODES, PartialObject))
        policies = Informer(Watch(api, CHECKPOINT_POLICIES, CachedPolicy))
        checkpoints = Informer(Watch(api, CHECKPOINTS, Checkpoint, within=served))
        holds = Informer(Watch(api, PREEMPTION_HOLDS, PreemptionHold, within=served))
        self.caches = AdmissionCaches(namespaces, nodes, policies, longest_seconds)
        checkpoints.subscribe(self.caches.on_checkpoint_change)
        holds.subscribe(self.caches.on_hold_change)
        self._api = api
        self._informers: tuple[Informer[Any], ...] = (namespaces, nodes, policies, checkpoints, holds)

    @property
    def unsynced_reason(self) -> str | None:
        """What has not synced yet, and why; None once every kind has."""
        return first_unsynced_reason(*self._informers)

    async def run(self) -> None:
        """Run the informers forever."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run(), name="mirror")
            tasks.create_task(self._detect_restart_rules(), name="version of the API server")

    async def _detect_restart_rules(self) -> None:
        for informer in self._informers:  # a synced cache proves that RBAC is effective, too
            await informer.synced.wait()
        self.caches.has_restart_rules = await has_restart_rules(self._api)
