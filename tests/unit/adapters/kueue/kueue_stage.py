"""Kueue as the conformance suite plays it: Jobs and Workloads in memory, suspended as Kueue and our webhook would.

Kueue asks for the suspension when it has decided, and again whenever the Job or the Workload changes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.adapter.conformance.cluster_stage import ClusterStage
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.kube.resources import JOBS, Resource
from cedana_sched.model.objects import names
from cedana_sched_kueue.adapter import KueueAdapter
from cedana_sched_kueue.objects import WORKLOADS
from cedana_sched_kueue.pod_workloads import GROUP_NAME
from cedana_sched_kueue.suspension_decision import Suspension, decide_suspension

NAMESPACE = "bio"


class KueueStage(ClusterStage):
    """Each job is an object with its Workload; `preempt` evicts the Workload. The real Kueue takes no eviction back."""

    adapter_class: ClassVar = KueueAdapter
    kind: ClassVar = JOBS
    """Of the objects that Kueue suspends."""
    lacks: ClassVar = {
        SchedulerCapability.KEEPING: "Kueue cannot be asked for another victim",
        SchedulerCapability.DEADLINE: "Kueue waits as long as its suspension of the Job is refused",
        SchedulerCapability.STARTS: "its workloads are pods",
    }

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[RunningWorkload, ...]] = {}
        """Pods of each Job by its name, with those that are gone."""
        self.api.subscribe(self._suspend_what_is_evicted)

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        name = f"md{next(self.numbers)}"
        variables = [{"name": "CEDANA_CHECKPOINT", "value": name}] if protected else []
        template = {"spec": {"containers": [{"name": "main", "env": variables}]}}
        self.api.put(self.kind, {"metadata": _metadata(name), "spec": {"suspend": False, "template": template}})
        owners = [owner] if (owner := self.owner_of_workload(name)) is not None else []
        self.api.put(WORKLOADS, {"metadata": {**_metadata(name), "ownerReferences": owners}})
        self._set(name, QuotaReserved=True, Admitted=True, Evicted=False)
        self._jobs[name] = tuple(
            self.put_member(name, index, protected=protected, deadline_seconds=deadline_seconds)
            for index in range(members)
        )
        await self.wait_until_reported()
        return self._jobs[name]

    def put_member(
        self, name: str, index: int, *, protected: bool = True, deadline_seconds: float = 600.0
    ) -> RunningWorkload:
        """Create a pod of a job."""
        owner = self.owner_of_pods(name)
        return self.put_pod(
            f"{name}-{index}", index=index, owner=owner, protected=protected, deadline_seconds=deadline_seconds
        )

    def owner_of_pods(self, name: str) -> Object:
        return self._owner(name)

    def owner_of_workload(self, name: str) -> Object | None:
        return self._owner(name)

    async def preempt(self, victim: RunningWorkload) -> None:
        self._set(_job_of(victim), Evicted=True, Preempted=True)

    async def take_back(self, victim: RunningWorkload) -> None:
        self._set(_job_of(victim), Evicted=False, Preempted=False)

    async def finish(self, victim: RunningWorkload) -> None:
        self.change_pod(victim, {"status": {"phase": "Succeeded"}})
        complete = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.api.merge(self.kind, _job_of(victim), NAMESPACE, {"status": complete})
        self._set(_job_of(victim), Finished=True)

    async def give_up(self, workload: RunningWorkload) -> None:
        name = _job_of(workload)
        self.api.remove(self.kind, name, NAMESPACE)
        self.api.remove(WORKLOADS, name, NAMESPACE)
        for pod in self._jobs[name]:
            self.remove_pod(pod)

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        name = _job_of(victim)
        self._set(name, Evicted=False, Preempted=False, Admitted=True)
        self.api.merge(self.kind, name, NAMESPACE, {"spec": {"suspend": False}})
        self._jobs[name] = (self.put_member(name, 0),)
        await self.wait_until_reported()
        return self._jobs[name][0]

    def _set(self, name: str, **conditions: bool) -> None:
        """Conditions of a Workload; each call is a second later than the one before."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self.numbers))
        workload = self.api.stored(WORKLOADS, name, NAMESPACE) or {}
        held = {one["type"]: one for one in workload.get("status", {}).get("conditions", ())}
        for kind, is_true in conditions.items():
            status = {"type": kind, "status": str(is_true), "reason": "InClusterQueue" if is_true else "QuotaReserved"}
            held[kind] = {**status, "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.api.merge(WORKLOADS, name, NAMESPACE, {"status": {"conditions": list(held.values())}})

    def _suspend_what_is_evicted(self) -> None:
        for job in self.api.all_of(self.kind):
            name = job["metadata"]["name"]
            workload = self.api.stored(WORKLOADS, name, NAMESPACE) or {}
            true = {one["type"] for one in workload.get("status", {}).get("conditions", ()) if one["status"] == "True"}
            wanted = "Evicted" in true and "Finished" not in true and not job["spec"]["suspend"]
            if wanted and self._may_be_suspended(job):
                change = {"metadata": {"annotations": {names.RELEASED_HOLD: None}}, "spec": {"suspend": True}}
                self.api.merge(self.kind, name, NAMESPACE, change)
                for pod in self._jobs[name]:
                    self.remove_pod(pod)

    def _may_be_suspended(self, job: Object) -> bool:
        """Our webhook's answer, which is asked for Jobs with protected pods only."""
        if not any(pod.identity for pod in self._jobs[job["metadata"]["name"]]):
            return True
        uid, annotations = job["metadata"]["uid"], job["metadata"].get("annotations") or {}
        holds = tuple(
            msgspec.convert(one, PreemptionHold) for one in self.holds() if one["spec"]["heldObjectRef"]["uid"] == uid
        )
        suspension = Suspension(uid, annotations.get(names.RELEASED_HOLD), started_at=None)
        return decide_suspension(suspension, holds, waited_seconds=0, now=datetime.now(tz=UTC)).refused is None

    def _owner(self, name: str) -> Object:
        return reference_to(self.kind, self.api.stored(self.kind, name, NAMESPACE))


class JobSetStage(KueueStage):
    """Each job is a JobSet, which owns a Job, which owns the pods; the adapter knows JobSet by its settings alone."""

    kind: ClassVar = Resource("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")

    def __init__(self) -> None:
        super().__init__()
        named = {"apiVersion": self.kind.group_version, "kind": self.kind.kind, "resource": self.kind.plural}
        self.settings = {"kinds": [named]}

    def owner_of_pods(self, name: str) -> Object:
        if self.api.stored(JOBS, f"{name}-part", NAMESPACE) is None:
            metadata = {**_metadata(f"{name}-part"), "ownerReferences": [self._owner(name)]}
            self.api.put(JOBS, {"metadata": metadata, "spec": {"suspend": False}})
        return reference_to(JOBS, self.api.stored(JOBS, f"{name}-part", NAMESPACE))


class PodGroupStage(KueueStage):
    """Each job is a group of pods, which Kueue stops one by one; the Job beside it only says whether it ran before."""

    def put_member(
        self, name: str, index: int, *, protected: bool = True, deadline_seconds: float = 600.0
    ) -> RunningWorkload:
        pod, labels = f"{name}-{index}", {GROUP_NAME: name}
        return self.put_pod(pod, index=index, labels=labels, protected=protected, deadline_seconds=deadline_seconds)

    def owner_of_workload(self, name: str) -> Object | None:
        return None

    def _may_be_suspended(self, job: Object) -> bool:
        """Kueue stops at the first pod that may not be stopped."""
        return all(map(self._may_be_stopped, self._jobs[job["metadata"]["name"]]))

    def _may_be_stopped(self, workload: RunningWorkload) -> bool:
        pod = self.pod_of(workload)
        if pod is None or workload.identity is None:
            return True
        uid, annotations = workload.uid, pod["metadata"].get("annotations") or {}
        holds = tuple(msgspec.convert(one, PreemptionHold) for one in self.holds() if uid in one["spec"]["pods"])
        stop = Suspension(uid, annotations.get(names.RELEASED_HOLD), started_at=None)
        return decide_suspension(stop, holds, waited_seconds=0, now=datetime.now(tz=UTC)).refused is None


def reference_to(kind: Resource, stored: Object | None) -> Object:
    """What objects of a controller say of it."""
    assert stored is not None
    metadata = stored["metadata"]
    named = {"apiVersion": kind.group_version, "kind": kind.kind, "name": metadata["name"], "uid": metadata["uid"]}
    return {**named, "controller": True}


def _metadata(name: str) -> Object:
    return {"name": name, "namespace": NAMESPACE}


def _job_of(pod: RunningWorkload) -> str:
    return pod.workload.name.rpartition("-")[0]
