"""Whether a pod that left the cache of protected pods has ended: confirmed with the API server before it is reported.

A pod also leaves that cache if a user removes our label. It keeps running then, and reporting it as ended would let
another pod run under its identity. While a record depends on the pod, the label is restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.served_namespaces import ServedNamespaces

log = structlog.get_logger(__name__)

REASON = "ProtectionRestored"
LOOK_AGAIN_SECONDS = 5.0
"""For a live pod that the cache does not contain: it may end before the cache has ever contained it."""


class PodEndConfirmation:
    """Confirmation of pods' ends. Run `run` as a task.

    Args:
        api: may get and patch pods.
        alive: pods that records depend on.
        is_cached: whether the cache contains a pod, and so will report its end.
        events: publishes that labels were restored.
        on_pod_ended: called with the uid of each ended pod, and the reason. Must not block.
        served: namespaces in which labels are restored.
        objection_to_end: returns why a pod that the API server lacks may still run; None once it has ended.
    """

    def __init__(
        self,
        api: Api,
        alive: PodNodeDependencies,
        is_cached: Callable[[WorkloadRef], bool],
        events: EventRecorder,
        on_pod_ended: Callable[[str, str], None],
        served: ServedNamespaces,
        objection_to_end: Callable[[WorkloadRef], str | None],
    ) -> None:
        self._objection_to_end = objection_to_end
        self._served = served
        self._api = api
        self._alive = alive
        self._is_cached = is_cached
        self._events = events
        self._on_pod_ended = on_pod_ended
        self._queue: WorkQueue[WorkloadRef] = WorkQueue("look for a pod", self._check_pod)

    async def run(self) -> None:
        """Check pods, forever, with backoff if the API server refuses."""
        await self._queue.run()

    def enqueue_check(self, workload: WorkloadRef) -> None:
        """Enqueue a pod that the cache does not contain; returns at once."""
        self._queue.add(workload)

    async def _check_pod(self, workload: WorkloadRef) -> None:
        uid = workload.uid
        pod = await self._api.find(PODS, workload.name, workload.namespace, into=Pod)
        if pod is None or pod.metadata.uid != uid:
            self._report_if_fenced(workload, "" if pod is None else ", and another one has its name")
        elif pod.finished:
            self._on_pod_ended(uid, f"the pod has {pod.status.phase.lower()}")
        elif self._alive.has_dependent_record(uid):
            is_served = self._served.includes(pod.metadata.namespace)
            if is_served and pod.metadata.labels.get(names.PROTECTED) != "true":
                await self._restore_label(pod)
            if not self._is_cached(workload):
                asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._queue.add, workload)

    def _report_if_fenced(self, workload: WorkloadRef, also: str) -> None:
        """Report the end of a pod that the API server lacks, once none of its processes can run any more."""
        if (why := self._objection_to_end(workload)) is None:
            self._on_pod_ended(workload.uid, f"the pod was deleted{also}")
            return
        log.info("end of a pod is not certain", namespace=workload.namespace, pod=workload.name, reason=why)
        if self._alive.has_dependent_record(workload.uid):
            asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._queue.add, workload)

    async def _restore_label(self, pod: Pod) -> None:
        metadata = pod.metadata
        patch: Object = {"metadata": {"labels": {names.PROTECTED: "true"}}}
        if not await patch_same(self._api, PODS, metadata, patch):  # the pod has ended meanwhile
            self._on_pod_ended(metadata.uid, "the pod was deleted")
            return
        log.warning("label was removed and is put back", namespace=metadata.namespace, pod=metadata.name)
        text = f"The label {names.PROTECTED} was removed while the pod was counted on, and was put back"
        involved = PODS.reference(metadata.name, metadata.namespace, metadata.uid)
        self._events.record_event(ObjectEvent(involved, REASON, text, warning=True))
