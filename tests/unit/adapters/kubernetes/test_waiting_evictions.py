"""Evictions that wait for a budget, however often the budget changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.kube.builtin_kinds import Condition, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import refreshed_mark, serialized_mark
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_kubernetes.objects import EVICTION_API, BudgetSpec, BudgetStatus, DisruptionBudget
from cedana_sched_kubernetes.requested_disruptions import RequestedDisruptions

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class _Cluster:
    """Pods of one budget, and the budget."""

    def __init__(self, pods: int, allowed: int) -> None:
        self.allow(allowed)
        self.lookups = 0
        self.pods_by_name = {pod.metadata.name: pod for pod in map(self._pod, range(pods))}
        self.pods = self.policies = self

    def _pod(self, number: int) -> Pod:
        mark = refreshed_mark(None, "admin", NOW, cause=EVICTION_API, budget="md")
        assert mark is not None
        annotations = {names.ID: "md", names.INDEX: str(number), names.DISRUPTION_REQUESTED: serialized_mark(mark)}
        metadata = Metadata(f"md-{number}", "lab", f"uid-{number}", annotations=annotations)
        return Pod(metadata, PodSpec("n1"), PodStatus("Running", conditions=(Condition("Ready", "True"),)))

    def allow(self, allowed: int) -> None:
        self.budget = DisruptionBudget(Metadata("md", "lab"), BudgetSpec(), BudgetStatus(allowed, 1, 1, 1))

    def get(self, name: str, namespace: str) -> Any:
        if name == "md":
            return self.budget
        self.lookups += 1
        return self.pods_by_name[name]

    def policy_of_pod(self, _: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()


def _begin(cluster: _Cluster) -> tuple[RequestedDisruptions, asyncio.Queue[Report]]:
    """All pods are marked, one after the other."""
    access, budgets = cast("ClusterAccess", cluster), cast("Informer[DisruptionBudget]", cluster)
    requests, reports = RequestedDisruptions("kubernetes", access, budgets, now=lambda: NOW), asyncio.Queue[Report]()
    with requests.subscribed_queue(reports):
        for pod in cluster.pods_by_name.values():
            requests._on_pod_change(None, pod)
    return requests, reports


async def test_changes_of_a_budget_cost_no_more_than_its_pods() -> None:
    """Any user who may write it changes it as often as they like, and the coordinator serves all tenants."""
    cluster = _Cluster(pods=100, allowed=50)
    requests, reports = _begin(cluster)
    assert reports.qsize() == 50
    cluster.lookups = 0
    cluster.allow(51)
    with requests.subscribed_queue(asyncio.Queue()) as others:
        for _ in range(50):
            requests._on_budget_change(None, cluster.budget)
        assert len([await others.get() for _ in range(51)]) == 51
    assert cluster.lookups <= 2 * len(cluster.pods_by_name)


async def test_pods_that_wait_for_one_budget_are_reported_as_far_as_it_allows() -> None:
    cluster = _Cluster(pods=10, allowed=1)
    requests, reports = _begin(cluster)
    assert reports.qsize() == 1
    cluster.allow(4)
    with requests.subscribed_queue(reports):
        requests._on_budget_change(None, cluster.budget)
        found = [await reports.get() for _ in range(5)]
        assert reports.empty()
    signals = {report.signal.victims[0].workload.name for report in found if isinstance(report, Preempted)}
    assert signals == {"md-0", "md-1", "md-2", "md-3"}
