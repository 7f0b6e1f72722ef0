"""A drain as the conformance suite plays it: it calls `pods/eviction`, our webhook refuses, and it calls again.

It calls again whenever something in the cluster changes; the real one every five seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.adapter.conformance.cluster_stage import ClusterStage
from cedana_sched.eviction_holds.pod_eviction_rule import decide
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.kube.resources import JOBS, NAMESPACES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import read_mark, refreshed_mark, serialized_mark
from cedana_sched_kubernetes.adapter import KubernetesAdapter
from cedana_sched_kubernetes.objects import EVICTION_API

NAMESPACE = "bio"
JOB_UID = "job-uid"
HOOKED = {names.PRESTOP_TOKEN: "token", names.CONFIRM_DELETION: names.CONFIRM_ALWAYS}
"""Annotations of a pod whose preStop hook waits."""


def owner(kind: str = "Job", api_version: str = "batch/v1", *, name: str = "md", uid: str = JOB_UID) -> Object:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


class KubernetesStage(ClusterStage):
    """Pods of one Job, which a drain evicts one by one."""

    adapter_class: ClassVar = KubernetesAdapter
    lacks: ClassVar = {
        SchedulerCapability.STARTS: "its workloads are pods",
        SchedulerCapability.CANCELLATION: "an eviction through the API stands, because most clients never call again",
        SchedulerCapability.GANGS: "a drain evicts pod by pod",
    }

    def __init__(self) -> None:
        super().__init__()
        self._drained: list[RunningWorkload] = []
        self._decisions = 0
        self.api.put(NAMESPACES, {"metadata": {"name": NAMESPACE, "uid": "namespace-uid"}})
        self.api.put(JOBS, {"metadata": {"name": "md", "namespace": NAMESPACE, "uid": JOB_UID}})
        self.api.subscribe(self._call)

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        name = f"md{next(self.numbers)}"
        pods = tuple(
            self.put_pod(
                f"{name}-{i}",
                index=i,
                protected=protected,
                deadline_seconds=deadline_seconds,
                owner=owner(),
                annotations=HOOKED,
            )
            for i in range(members)
        )
        await self.wait_until_reported()
        return pods

    async def preempt(self, victim: RunningWorkload) -> None:
        self._decisions += 1
        self._drained.append(victim)
        self._call()

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        """It is deleted, and its preStop hook holds it."""
        ends_at = datetime(2040, 1, 1, tzinfo=UTC)
        self.change_pod(victim, {"metadata": {"deletionTimestamp": ends_at.strftime("%Y-%m-%dT%H:%M:%SZ")}})
        return ends_at.timestamp()

    async def finish(self, victim: RunningWorkload) -> None:
        self.change_pod(victim, {"status": {"phase": "Succeeded"}})

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        again = self.put_pod(victim.workload.name, owner=owner(), annotations=HOOKED)
        await self.wait_until_reported()
        return again

    def _call(self) -> None:
        """One call of the drain."""
        for victim in tuple(self._drained):
            pod = self.pod_of(victim)
            if pod is None or pod["status"]["phase"] != "Running":
                self._drained.remove(victim)
            elif self._is_allowed(victim):
                self._drained.remove(victim)
                self.remove_pod(victim)

    def _is_allowed(self, victim: RunningWorkload) -> bool:
        """Our webhook's answer, which marks the pod when it is no."""
        if victim.identity is None:
            return True
        annotations = (self.pod_of(victim) or {})["metadata"]["annotations"]
        mark, now = read_mark(annotations, names.DISRUPTION_REQUESTED), self._now()
        holds = [convert_hold(one) for one in self.holds() if victim.uid in one["spec"]["pods"]]
        if decide(victim.uid, mark, holds, now).refused is None:
            return True
        if (again := refreshed_mark(mark, "admin", now, cause=EVICTION_API)) is not None:
            patch = {"metadata": {"annotations": {names.DISRUPTION_REQUESTED: serialized_mark(again)}}}
            self.change_pod(victim, patch)
        return False

    def _now(self) -> datetime:
        """No two decisions are of one moment."""
        return SERVER_TIME.now() + timedelta(seconds=self._decisions)


def convert_hold(body: Object) -> PreemptionHold:
    return msgspec.convert(body, PreemptionHold)
