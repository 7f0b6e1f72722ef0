"""Evictions that the webhook has refused, and that this adapter performs once the pod is saved.

A drain, the Cluster Autoscaler, Karpenter and the descheduler call `pods/eviction`; the taint controller writes
`DisruptionTarget`. Some of them never call again, others seconds later. So a request stands from the moment at which
its pod is reported, whether it is repeated or not, and the release performs it: the client finds the pod deleted.

A PodDisruptionBudget is respected before the pod is frozen: of the pods that one budget counts, no more are saved at a
time than it allows to be evicted. The others wait, as long as their clients repeat the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

import msgspec

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.mark_removal import is_running
from cedana_sched.adapter.protected_pods import build_victim
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_kubernetes.budget_lag import BudgetLag
from cedana_sched_kubernetes.disruption_condition import write_disruption_condition
from cedana_sched_kubernetes.objects import EVICTION_API, TAINT, DisruptionBudget
from cedana_sched_kubernetes.saved_pod_eviction import SavedPodEviction

REVIEW_SECONDS: Final = 0.2
"""Pause in which changes of budgets become one: any user who may write a budget changes it as often as they like."""
_EVICTED: Final = frozenset({Verdict.COMMITTED, Verdict.EVICT})
_BudgetKey = tuple[str, str]
"""Namespace and name."""


class _Request(msgspec.Struct, frozen=True):
    """A reported eviction."""

    pod: Pod
    mark: EvictionMark
    signal: Signal


class RequestedDisruptions:
    """Turns disruption marks into reports, and releases into evictions. Run `run` as a task.

    Args:
        adapter: the name in records.
        cluster: the coordinator's shared clients and caches.
        budgets: all PodDisruptionBudgets.
        now: the current time.
    """

    def __init__(
        self,
        adapter: str,
        cluster: ClusterAccess,
        budgets: Informer[DisruptionBudget],
        *,
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._adapter = adapter
        self._cluster = cluster
        self._budgets = budgets
        self._now = now
        self._requests: dict[str, _Request] = {}
        """By uid of the pod: reported, and neither deleted nor cancelled."""
        self._waiting: dict[str, Pod] = {}
        """By uid: marked pods whose budget does not allow their eviction now."""
        self._changed_budgets: set[_BudgetKey] = set()
        """Whose waiting pods are reviewed after `REVIEW_SECONDS`."""
        self._lag = BudgetLag()
        """Of reported pods."""
        self._evictions = SavedPodEviction()
        self._readers: ReportFanout[Report] = ReportFanout()

    async def run(self) -> None:
        """Watch pods and budgets, forever."""
        pods = self._cluster.pods
        await pods.synced.wait()
        await self._budgets.synced.wait()
        pods.subscribe(self._on_pod_change)
        self._budgets.subscribe(self._on_budget_change)
        try:
            for pod in pods:
                self._on_pod_change(None, pod)
            await asyncio.Event().wait()
        finally:
            pods.unsubscribe(self._on_pod_change)
            self._budgets.unsubscribe(self._on_budget_change)

    def subscribed_queue(self, queue: asyncio.Queue[Report]) -> AbstractContextManager[asyncio.Queue[Report]]:
        """Return a block in which the queue gets the reported evictions again, then new reports."""
        pending = [Preempted(one.signal) for one in self._requests.values()]
        return self._readers.subscribed_queue(pending, queue)

    async def on_released(self, release: Release) -> bool:
        """Evict the released pods, if this is the release of a requested eviction.

        Returns:
            Whether it is one, as far as its pods still run.

        Raises:
            RetryableError: the API server is unreachable, or a budget does not allow the eviction now.
        """
        is_requested = False
        for uid, verdict in release.verdicts.items():
            pod = self._cluster.pods_by_uid.unique_object_of(uid)
            if pod is None or (mark := self._mark_of_request(pod, release.signal_uid)) is None:
                continue
            is_requested = True
            if verdict in _EVICTED and is_running(pod):
                await self._evict(pod, mark, release.signal_uid)
            else:
                self._requests.pop(uid, None)
        return is_requested

    def _mark_of_request(self, pod: Pod, signal_uid: str) -> EvictionMark | None:
        """Return the mark that was reported by this signal; None if it is another's signal.

        A later call may have replaced the mark of one that came only once. After a restart only the mark is left.
        """
        request = self._requests.get(pod.metadata.uid)
        if request is not None and request.signal.uid == signal_uid:
            return request.mark
        mark = read_mark(pod.metadata.annotations, names.DISRUPTION_REQUESTED)
        return mark if mark is not None and _signal_uid(pod, mark) == signal_uid else None

    async def _evict(self, pod: Pod, mark: EvictionMark, signal_uid: str) -> None:
        eviction = self._delete_tainted(pod) if mark.cause == TAINT else self._evict_by_api(pod)
        if (refusal := await self._evictions.attempt(pod.metadata, eviction, mark.by)) is not None:
            self._requests.pop(pod.metadata.uid, None)
            self._readers.publish(PreemptionCancelled(signal_uid, refusal))

    async def _delete_tainted(self, pod: Pod) -> None:
        """Delete the pod as the taint controller does, whatever its budget is."""
        metadata = pod.metadata
        await write_disruption_condition(self._cluster.api, pod, TAINT, "cedana-sched: NoExecute taint")
        await self._cluster.api.delete(PODS, metadata.name, metadata.namespace, uid=metadata.uid)

    async def _evict_by_api(self, pod: Pod) -> None:
        await self._cluster.api.evict(pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        pod = now or before
        if pod is None:
            return
        uid = pod.metadata.uid
        if now is None or not is_running(now):
            self._waiting.pop(uid, None)
            request = self._requests.pop(uid, None)
            is_ready = False
        elif (request := self._requests.get(uid)) is None:
            self._review(now)
            return
        else:
            is_ready = now.ready  # a frozen pod fails its probes sooner or later
        if request is not None and before is not None and before.ready and not is_ready:
            self._await_update_of_budget(request)

    def _await_update_of_budget(self, request: _Request) -> None:
        if (budget := self._budget_of(request.pod, request.mark)) is not None:
            self._lag.add(budget, request.pod.metadata.uid)

    def _on_budget_change(self, before: DisruptionBudget | None, now: DisruptionBudget | None) -> None:
        if (budget := now or before) is None:
            return
        self._lag.on_budget_change(before, now)
        if not self._changed_budgets:
            asyncio.get_running_loop().call_later(REVIEW_SECONDS, self._review_waiting)
        self._changed_budgets.add((budget.metadata.namespace, budget.metadata.name))

    def _review_waiting(self) -> None:
        """Review the pods that wait for budgets that have changed."""
        changed, self._changed_budgets = self._changed_budgets, set()
        in_flight: dict[_BudgetKey, set[str]] = {key: set() for key in changed}
        for request in self._requests.values():
            if (of_budget := in_flight.get(_budget_key(request.pod, request.mark))) is not None:
                of_budget.update(self._healthy_uids(request))
        for pod in tuple(self._waiting.values()):
            mark = read_mark(pod.metadata.annotations, names.DISRUPTION_REQUESTED)
            if mark is not None and (of_budget := in_flight.get(_budget_key(pod, mark))) is not None:
                self._review(pod, of_budget)

    def _review(self, pod: Pod, in_flight: set[str] | None = None) -> None:
        """Report the pod's eviction if it is requested now, and its budget allows it.

        Args:
            pod: running, and not reported.
            in_flight: uids of the reported pods that its budget still counts as healthy; the pod is added if it becomes
                one. None: not counted yet.
        """
        uid = pod.metadata.uid
        self._waiting.pop(uid, None)
        mark = read_mark(pod.metadata.annotations, names.DISRUPTION_REQUESTED)
        if mark is None or not mark.is_fresh(self._now()):
            return
        if not self._is_allowed_by_budget(pod, mark, in_flight):
            self._waiting[uid] = pod
            return
        victim = build_victim(pod, self._cluster.policies)
        if victim is None:
            return
        reason = mark.cause or EVICTION_API
        signal = Signal(_signal_uid(pod, mark), self._adapter, (victim,), reason, self._now().timestamp())
        request = self._requests[uid] = _Request(pod, mark, signal)
        if in_flight is not None:
            in_flight.update(self._healthy_uids(request))
        self._readers.publish(Preempted(signal))

    def _is_allowed_by_budget(self, pod: Pod, mark: EvictionMark, in_flight: set[str] | None) -> bool:
        if (budget := self._budget_of(pod, mark)) is None:
            return True
        if in_flight is None:
            key = _budget_key(pod, mark)
            of_budget = (one for one in self._requests.values() if _budget_key(one.pod, one.mark) == key)
            in_flight = {uid for one in of_budget for uid in self._healthy_uids(one)}
        return budget.allows(is_ready=pod.ready, in_flight=len(in_flight | self._lag.unshown_pods(budget)))

    def _budget_of(self, pod: Pod, mark: EvictionMark) -> DisruptionBudget | None:
        return self._budgets.get(mark.budget, pod.metadata.namespace) if mark.budget else None

    def _healthy_uids(self, request: _Request) -> tuple[str, ...]:
        """Return the uid of a reported pod, if its budget still counts it as healthy; else nothing."""
        metadata = request.pod.metadata
        shown = self._cluster.pods.get(metadata.name, metadata.namespace)
        is_healthy = shown is not None and shown.metadata.uid == metadata.uid and shown.ready
        return (metadata.uid,) if is_healthy else ()


def _budget_key(pod: Pod, mark: EvictionMark) -> _BudgetKey:
    return pod.metadata.namespace, mark.budget


def _signal_uid(pod: Pod, mark: EvictionMark) -> str:
    return f"{pod.metadata.uid}~{mark.since}"  # no scheduler's signal of the pod has this uid
