"""Kubernetes' implementation of the adapter contract: no scheduler has to be configured for it.

Four sources report: preemptions by kube-scheduler (`MarkedEvictions`), evictions by others, deletions, and notices that
a node ends. Each pod belongs to one adapter: one whose scheduler or controller has an adapter of its own belongs to
that. This adapter saves these only from evictions by others, from the end of their node, and from deletions that the
other adapter hands over, because they are not its scheduler's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from cedana_sched.adapter.cluster_contract import (
    ClusterAccess,
    ClusterAdapter,
    OptedInSink,
    OptingIn,
    QueuePolicies,
    QueuePolicyChanges,
)
from cedana_sched.adapter.contract import PreemptionCancelled, Report
from cedana_sched.adapter.marked_evictions import MarkedEvictions
from cedana_sched.adapter.settings import read_section
from cedana_sched.kube.builtin_kinds import Node, Pod
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.client import Object
from cedana_sched.kube.mark_problems import report_mark_problems
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, NAMESPACES, NODES
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.objects.node_interruption import NodeInterruption, parse_interruption
from cedana_sched.model.objects.protect_mark import validate_protect_mark
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_kubernetes.admin_opt_in import AdminOptIn
from cedana_sched_kubernetes.deletions import Deletions, is_handed_over
from cedana_sched_kubernetes.node_interruptions import NodeInterruptions
from cedana_sched_kubernetes.objects import DISRUPTION_BUDGETS, DisruptionBudget, Namespace
from cedana_sched_kubernetes.policy_selectors import PolicySelectors, is_selecting_more
from cedana_sched_kubernetes.requested_disruptions import RequestedDisruptions
from cedana_sched_kubernetes.settings import Settings


class KubernetesAdapter:
    """Adapter for pods that no other adapter is responsible for, whatever their controller."""

    name: ClassVar[str] = "kubernetes"

    def __init__(self, cluster: ClusterAccess) -> None:
        self._settings = read_section(self.name, Settings, cluster.settings)
        for label in self._settings.other_labels:
            register_cached_key(label)
        unreadable = cluster.record_unreadable
        self._budgets = Informer(
            Watch(cluster.api, DISRUPTION_BUDGETS, DisruptionBudget, within=cluster.served), unreadable
        )
        self._namespaces = Informer(Watch(cluster.api, NAMESPACES, Namespace, only_metadata=True), unreadable)
        report_mark_problems(self._namespaces, NAMESPACES, unreadable, partial(_validate_mark, cluster.served))
        self._policies: Informer[CachedPolicy] | None = None
        selectors = PolicySelectors(self._namespaces.get)
        if self._settings.pod_selectors:
            self._policies = Informer(Watch(cluster.api, CHECKPOINT_POLICIES, CachedPolicy))
            self._policies.subscribe(selectors.on_policy_change)
        self._opt_in = AdminOptIn(self._namespaces.get, selectors, self._settings, cluster.served)
        self._preemptions = MarkedEvictions(self.name, cluster, concerns=self._is_preemptible)
        self._nodes = Informer(Watch(cluster.api, NODES, Node), unreadable)
        report_mark_problems(self._nodes, NODES, unreadable, _read_notice)
        self._interruptions = NodeInterruptions(self.name, cluster, self._nodes)
        self._deletions = Deletions(
            self.name, cluster, concerns=self._explains_deletion_of, is_left_out=self._interruptions.is_left_out
        )
        self._requests = RequestedDisruptions(self.name, cluster, self._budgets)

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Construct it; makes no API call.

        Raises:
            UsageError: a setting is invalid.
        """
        return cls(cluster)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """See `adapter.cluster_contract.Watching`."""
        watched = (self._budgets, self._namespaces, self._nodes)
        return watched if self._policies is None else (*watched, self._policies)

    async def run(self) -> None:
        """Run the informers and the sources of reports, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._budgets.run(), name="PodDisruptionBudgets")
            group.create_task(self._namespaces.run(), name="Namespaces")
            if self._policies is not None:
                group.create_task(self._policies.run(), name="CheckpointPolicies")
            group.create_task(self._nodes.run(), name="Nodes")
            group.create_task(self._interruptions.run(), name="interruptions of nodes")
            group.create_task(self._preemptions.run(), name="eviction marks")
            group.create_task(self._requests.run(), name="requested disruptions")
            group.create_task(self._deletions.run(), name="deletions")

    def opt_in_annotations(self, pod: Object) -> Mapping[str, str]:
        """See `adapter.cluster_contract.OptingIn`."""
        return self._opt_in.annotations_for(pod)

    def on_more_opted_in(self, sink: OptedInSink) -> None:
        """See `adapter.cluster_contract.OptingIn`."""

        def on_namespace_change(before: Namespace | None, now: Namespace | None) -> None:
            if now is not None and self._opt_in.protects_more(before, now):
                sink(now.metadata.name)

        def on_policy_change(before: CachedPolicy | None, now: CachedPolicy | None) -> None:
            if now is not None and is_selecting_more(before, now):
                sink(None)

        self._namespaces.subscribe(on_namespace_change)
        if self._policies is not None:
            self._policies.subscribe(on_policy_change)

    def queue_policy(self, pod: Pod) -> str | None:
        """See `adapter.cluster_contract.QueuePolicies`: the policy that selected the pod, else its namespace's."""
        return self._opt_in.queue_policy_of(pod)

    def on_queue_policies_changed(self, sink: Callable[[], None]) -> None:
        """See `adapter.cluster_contract.QueuePolicyChanges`: namespaces name policies, and policies select in them."""

        def on_namespace_change(before: Namespace | None, now: Namespace | None) -> None:
            if before is None or now is None or _marks_of(before) != _marks_of(now):
                sink()

        self._namespaces.subscribe(on_namespace_change)
        if self._policies is not None:
            self._policies.subscribe(lambda _before, _now: sink())

    async def reports(self) -> AsyncIterator[Report]:
        """Yield the reports of all sources."""
        queue: asyncio.Queue[Report] = asyncio.Queue()
        with ExitStack() as stack:
            for source in (self._preemptions, self._requests, self._deletions, self._interruptions):
                stack.enter_context(source.subscribed_queue(queue))
            while True:
                report = await queue.get()
                if isinstance(report, PreemptionCancelled):
                    self._deletions.on_eviction_cancelled(report.signal_uid)
                yield report

    async def release(self, release: Release) -> None:
        """Let kube-scheduler's next attempt pass, and evict pods that others want to evict, or whose node ends.

        Raises:
            RetryableError: the API server was unavailable, or a budget does not allow the eviction now.
        """
        await self._preemptions.synced.wait()
        for uid, verdict in release.verdicts.items():
            if verdict in {Verdict.COMMITTED, Verdict.EVICT}:
                self._deletions.on_evicted(uid, release.signal_uid)
        if not (await self._interruptions.on_released(release) or await self._requests.on_released(release)):
            await self._preemptions.on_released(release)

    def _is_preemptible(self, pod: Pod) -> bool:
        """Whether kube-scheduler may preempt it for this adapter: also pods whose Jobs another adapter watches."""
        return pod.spec.scheduler_name not in self._settings.other_schedulers

    def _explains_deletion_of(self, pod: Pod) -> bool:
        return self._settings.is_ours(pod.spec.scheduler_name, pod.metadata.labels) or is_handed_over(pod)


def _read_notice(node: Node) -> NodeInterruption | None:
    """Read the annotation, which an admin may write by hand, for a provider whose notices no agent reads."""
    return parse_interruption(node.metadata.annotations)


def _validate_mark(served: ServedNamespaces, namespace: Namespace) -> None:
    if served.includes(namespace.metadata.name):
        validate_protect_mark("metadata.labels", namespace.metadata.labels)


def _marks_of(namespace: Namespace) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return namespace.metadata.labels, namespace.metadata.annotations


if TYPE_CHECKING:

    def _fulfils(adapter: KubernetesAdapter) -> tuple[ClusterAdapter, OptingIn, QueuePolicies, QueuePolicyChanges]:
        return adapter, adapter, adapter, adapter
