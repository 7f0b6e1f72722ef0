"""Concurrent pods of one identity: the later one is not protected, and an Event reports that.

The webhooks number pods to prevent this. But users may give two Jobs one id, and no webhook sees both: two pods may be
created at once through two replicas. Here all protected pods are cached. The refusal is annotated on the pod, so that
its state is never taken for the first pod's, even after that pod has ended.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from cedana_sched.adapter.contract import Preempted, Report, Starting
from cedana_sched.adapter.protected_pods import find_identity, workload_of
from cedana_sched.cluster.coordinator.owner_references import warn_not_protected
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Victim
from cedana_sched.model.records import CheckpointStep
from cedana_sched_webhooks.pod_mutations import LONGEST_REASON


class Rivals:
    """Detection and refusal of later pods. Run `run` as a task.

    Args:
        api: annotates pods.
        pods: all protected pods.
        checkpoints: of all pods.
        events: publishes refusals.
    """

    def __init__(
        self, api: Api, pods: Informer[Pod], checkpoints: Informer[KnownCheckpoint], events: EventRecorder
    ) -> None:
        self._api = api
        self._pods = pods
        self._events = events
        self._by_identity = Index(find_identity, pods)
        self._checkpoints = Index(lambda one: one.spec.pod_ref.uid or None, checkpoints)
        self._changed: set[Identity] = set()
        """Identities of pods that run since the last review."""
        self._refusing = WorkQueue(
            "refusal of a pod that is not protected",
            self._refuse_protection,
            group_of=lambda key: key.partition("/")[0],
        )
        pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Refuse later pods, forever."""
        for pod in self._pods:
            self._on_pod_changed(None, pod)
        await self._refusing.run()

    def add_rivals_to_report(self, report: Report) -> Report:
        """Return the report with rivals filled in."""
        if isinstance(report, Starting):
            pod = self._pods.get(report.workload.name, report.workload.namespace)
            first = (
                self._earlier_live_rival(pod) if pod is not None and pod.metadata.uid == report.workload.uid else None
            )
            return report if first is None else replace(report, rival=workload_of(first))
        if isinstance(report, Preempted):
            victims = tuple(map(self._fill_in_refusal, report.signal.victims))
            return Preempted(replace(report.signal, victims=victims))
        return report

    def _fill_in_refusal(self, victim: Victim) -> Victim:
        pod = self._pods.get(victim.workload.name, victim.workload.namespace)
        if pod is None or pod.metadata.uid != victim.workload.uid:
            return victim
        return replace(victim, refused=self._refusal_reason(pod))

    def _refusal_reason(self, pod: Pod) -> str | None:
        """Return why the pod must not be saved."""
        if (reason := pod.metadata.annotations.get(names.NOT_PROTECTED)) is not None:
            return reason[:LONGEST_REASON]
        first = self._earlier_live_rival(pod)
        if first is None or self._is_saved(first):
            return None
        identity = find_identity(pod)
        assert identity is not None  # noqa: S101  # a rival implies an identity
        return f"{identity.id}/{identity.index} is already run by {first.metadata.name}; give each an id of its own"

    def _earlier_live_rival(self, pod: Pod) -> Pod | None:
        """Return the pod that ran under this identity before, and still runs."""
        if (identity := find_identity(pod)) is None:
            return None
        others = (one for one in self._by_identity.objects_of(identity) if one.metadata.uid != pod.metadata.uid)
        earlier = [one for one in others if _is_live(one) and _start_order(one) < _start_order(pod)]
        return min(earlier, key=_start_order, default=None)

    def _is_saved(self, pod: Pod) -> bool:
        """Whether the pod is being or has been saved to be evicted, and so is about to end."""
        known = self._checkpoints.objects_of(pod.metadata.uid)
        return any(one.status.step is not CheckpointStep.FAILED and not one.has_pod_run_on for one in known)

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        if now is None or not _is_running(now) or (before is not None and _is_running(before)):
            return
        if (identity := find_identity(now)) is None:
            return
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._review_changed)
        self._changed.add(identity)

    def _review_changed(self) -> None:
        """Queue the later pods of changed identities; a tenant decides how many pods run under one."""
        changed, self._changed = self._changed, set()
        for identity in changed:
            running = [one for one in self._by_identity.objects_of(identity) if _is_live(one)]
            first = min(running, key=_start_order, default=None)
            for one in running:
                if one is not first and _is_running(one):
                    self._refusing.add(f"{one.metadata.namespace}/{one.metadata.name}")

    async def _refuse_protection(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        pod = self._pods.get(name, namespace)
        if pod is None or not _is_running(pod) or (why := self._refusal_reason(pod)) is None:
            return
        warn_not_protected(self._events, pod.metadata, why)
        await patch_same(self._api, PODS, pod.metadata, {"metadata": {"annotations": {names.NOT_PROTECTED: why}}})


def _is_live(pod: Pod) -> bool:
    """Whether its processes run, or may at any time, and it is entitled to its identity."""
    metadata = pod.metadata
    if pod.finished or metadata.deletion_timestamp is not None or names.NOT_PROTECTED in metadata.annotations:
        return False
    return bool(pod.spec.node_name)


def _is_running(pod: Pod) -> bool:
    return _is_live(pod) and pod.status.phase == "Running"


def _start_order(pod: Pod) -> tuple[bool, str, str, str]:
    """Order by start on the node, earliest first; a tie within one second is arbitrary."""
    started = pod.status.start_time
    return started is None, started or "", pod.metadata.creation_timestamp or "", pod.metadata.uid
