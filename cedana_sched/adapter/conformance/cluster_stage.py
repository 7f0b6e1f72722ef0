"""Stage for adapters of Kubernetes schedulers with a fake scheduler: pods, policies, holds and shared access."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from cedana_sched.adapter.cluster_contract import ClusterAccess, ClusterAdapter
from cedana_sched.adapter.conformance.stage import RunningWorkload, Stage, running_beside, yield_to_loop
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.resources import PODS, PREEMPTION_HOLDS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, WorkloadRef
from cedana_sched.model.records import HoldStep
from cedana_sched.model.served_namespaces import EVERYWHERE
from cedana_sched.testing import FakeApi

NODE = "node-1"
HOLD_SECONDS = 600


class ClusterStage(Stage):
    """A cluster in `api`. A subclass adds the scheduler, and names its adapter."""

    adapter_class: ClassVar[type[ClusterAdapter]]

    def __init__(self) -> None:
        self.api = FakeApi()
        self.settings: Mapping[str, Any] = {}
        """The adapter's section of the configuration."""
        self.served = EVERYWHERE
        """Namespaces in which the adapter acts."""
        self.numbers = itertools.count(1)
        self._policies: dict[str, CheckpointPolicy] = {}
        self._notes: bytes | None = None

    @asynccontextmanager
    async def adapter(self) -> AsyncIterator[ClusterAdapter]:
        pods = Informer(Watch(self.api, PODS, Pod, labels=f"{names.PROTECTED}=true", within=self.served))
        events = EventRecorder(self.api, "conformance")
        access = ClusterAccess(self.api, events, pods, self, self, "cedana-sched", self, self.settings, self.served)
        adapter = self.adapter_class.connect(access)
        async with running_beside(pods.run(), adapter.run()):
            await pods.synced.wait()
            await self.wait_until_reported()
            yield adapter

    async def wait_until_reported(self) -> None:
        await yield_to_loop()

    async def repeat_current_state(self) -> None:
        self.api.repeat_current_state()

    @asynccontextmanager
    async def scheduler_outage(self) -> AsyncIterator[None]:
        self.api.traffic.down = True
        try:
            yield
        finally:
            self.api.traffic.down = False

    async def give_up(self, workload: RunningWorkload) -> None:
        self.remove_pod(workload)

    async def is_evicted(self, victim: RunningWorkload) -> bool:
        return self.pod_of(victim) is None

    async def wait_until_evicted(self, victim: RunningWorkload) -> None:
        await self.api.until(lambda: self.pod_of(victim) is None)

    # -- the coordinator's side effects beyond the contract

    async def on_hold_created(self, signal: Signal) -> None:
        namespace, name = _hold_location(signal)
        if self.api.stored(PREEMPTION_HOLDS, name, namespace) is not None:
            return
        now = datetime.now(tz=UTC)
        spec = {
            "uid": signal.uid,
            "adapter": signal.adapter,
            "reason": signal.reason,
            "creationTime": _micro_time(now),
            "heldObjectRef": {"uid": signal.held.uid} if signal.held else None,
            "pods": [victim.workload.uid for victim in signal.victims],
        }
        status = {"step": HoldStep.HOLDING, "deadline": _micro_time(now + timedelta(seconds=HOLD_SECONDS))}
        self.api.put(PREEMPTION_HOLDS, {"metadata": _metadata(name, namespace), "spec": spec, "status": status})

    async def on_release_decided(self, release: Release) -> None:
        victims = [{"podUID": uid, "verdict": verdict} for uid, verdict in release.verdicts.items()]
        status = {"step": HoldStep.RELEASING, "victims": victims}
        for hold in self.holds():
            if hold["spec"]["uid"] == release.signal_uid:
                metadata = hold["metadata"]
                self.api.merge(PREEMPTION_HOLDS, metadata["name"], metadata["namespace"], {"status": status})

    def holds(self) -> tuple[Object, ...]:
        """Return the PreemptionHolds that the webhooks read. `spec.pods` (victims' uids) exists in this fake only."""
        return self.api.all_of(PREEMPTION_HOLDS)

    # -- pods

    def put_pod(
        self,
        name: str,
        *,
        protected: bool = True,
        index: int = 0,
        deadline_seconds: float = 600.0,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        owner: Object | None = None,
        scheduler: str = "default-scheduler",
        namespace: str = "bio",
        identifier: str | None = None,
    ) -> RunningWorkload:
        """Create a running, webhook-mutated pod. `identifier` defaults to the name up to the last `-`."""
        uid = f"pod-{next(self.numbers)}"
        metadata: Object = {
            **_metadata(name, namespace),
            "uid": uid,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        }
        identity = None
        if protected:
            identity = Identity(namespace, identifier or name.rpartition("-")[0] or name, index)
            policy = f"deadline-{deadline_seconds:g}"
            self._policies[policy] = CheckpointPolicy(deadline_seconds=deadline_seconds)
            metadata["labels"][names.PROTECTED] = "true"
            metadata["annotations"] |= {names.ID: identity.id, names.INDEX: str(index), names.POLICY: policy}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        spec = {"nodeName": NODE, "schedulerName": scheduler}
        status = {"phase": "Running", "startTime": "2026-01-01T12:00:00Z"}
        self.api.put(PODS, {"metadata": metadata, "spec": spec, "status": status})
        return RunningWorkload(WorkloadRef(uid, namespace, name, NODE), identity)

    def pod_of(self, workload: RunningWorkload) -> Object | None:
        """Return the pod if it still exists; another pod may have its name."""
        pod = self.api.stored(PODS, workload.workload.name, workload.workload.namespace)
        return pod if pod is not None and pod["metadata"]["uid"] == workload.uid else None

    def change_pod(self, workload: RunningWorkload, patch: Object) -> None:
        """Merge a patch into the pod, if it exists."""
        if self.pod_of(workload) is not None:
            self.api.merge(PODS, workload.workload.name, workload.workload.namespace, patch)

    def remove_pod(self, workload: RunningWorkload) -> None:
        """Delete the pod, if it exists."""
        if self.pod_of(workload) is not None:
            self.api.remove(PODS, workload.workload.name, workload.workload.namespace)

    # -- shared by the coordinator: `Policies`, `Snapshots`, `Notes`

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:  # noqa: ARG002 - all are for all
        return self._policies.get(name or "", CheckpointPolicy())

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return self.policy_named(pod.metadata.annotations.get(names.POLICY), pod.metadata.namespace)

    def snapshots_of(self, namespace: str, identifier: str) -> Iterable[SnapshotRef]:  # noqa: ARG002 - none exist
        return ()

    async def read(self) -> bytes | None:
        return self._notes

    async def write(self, notes: bytes) -> None:
        self._notes = notes


def _hold_location(signal: Signal) -> tuple[str, str]:
    return signal.victims[0].workload.namespace, hold_name(signal.uid)


def _metadata(name: str, namespace: str) -> Object:
    return {"name": name, "namespace": namespace}


def _micro_time(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")
