"""Whether a pod that left the cache of protected pods has ended: confirmed with the API server before it is reported.

A pod also leaves that cache if a user removes our label. It keeps running then, and reporting it as ended would let
another pod run under its identity. While a record depends on the pod, the label is restored.

A pod that the API server lacks never returns, but may still run. It is not read again: its node's changes, and the time
that its kubelet has, decide when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from cedana_sched.adapter.contract import Ended
from cedana_sched.adapter.protected_pods import workload_of
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing, has_node_gone
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.seen_pod_ends import is_lost_with_node
from cedana_sched.kube.builtin_kinds import Node, Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.served_namespaces import ServedNamespaces

log = structlog.get_logger(__name__)

REASON = "ProtectionRestored"
LOOK_AGAIN_SECONDS = 5.0
"""For a live pod that the cache does not contain: it may end before the cache has ever contained it."""


@dataclass(slots=True)
class _Absent:
    """A pod that the API server lacks, and that may still run."""

    workload: WorkloadRef
    what: str
    """A clause for Events and records."""
    why: str = ""
    """Why it may still run, as logged last."""
    timer: asyncio.TimerHandle | None = None

    def log_blocker(self, why: str) -> None:
        """Log why the pod may still run, once."""
        if why != self.why:
            self.why = why
            workload = self.workload
            log.info("end of a pod is not certain", namespace=workload.namespace, pod=workload.name, reason=why)

    def cancel_timer(self) -> None:
        """Drop the next look at it."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PodEndConfirmation:
    """Confirmation of pods' ends. Run `run` as a task.

    Args:
        api: may get and patch pods.
        dependencies: pods that records depend on.
        is_cached: whether the cache contains a pod, and so will report its end.
        events: publishes that labels were restored.
        on_pod_ended: called with each end. Must not block.
        served: namespaces in which labels are restored.
        fencing: evidence that pods have ended; None: a pod that the API server lacks has ended.
        now: seconds since the epoch, by the API server.
    """

    def __init__(
        self,
        api: Api,
        dependencies: PodNodeDependencies,
        is_cached: Callable[[WorkloadRef], bool],
        events: EventRecorder,
        on_pod_ended: Callable[[Ended], None],
        served: ServedNamespaces,
        fencing: PodFencing | None = None,
        now: Callable[[], float] = SERVER_TIME.seconds,
    ) -> None:
        self._fencing = fencing
        self._now = now
        self._absent: dict[str, _Absent] = {}
        """By uid."""
        self._served = served
        self._api = api
        self._dependencies = dependencies
        self._is_cached = is_cached
        self._events = events
        self._on_pod_ended = on_pod_ended
        self._queue: WorkQueue[WorkloadRef] = WorkQueue(
            "look for a pod", self._check_pod, group_of=lambda workload: workload.namespace
        )

    async def run(self) -> None:
        """Check pods, forever, with backoff if the API server refuses."""
        if self._fencing is not None:
            self._fencing.subscribe(self._on_node_changed)
        await self._queue.run()

    def enqueue_check(self, workload: WorkloadRef) -> None:
        """Enqueue a pod that the cache does not contain; returns at once."""
        self._queue.add(workload)

    async def _check_pod(self, workload: WorkloadRef) -> None:
        uid = workload.uid
        if uid in self._absent:
            await self._settle(workload)
            return
        pod = await self._api.find(PODS, workload.name, workload.namespace, into=Pod)
        if pod is None or pod.metadata.uid != uid:
            await self._report_if_fenced(workload, "" if pod is None else ", and another one has its name")
        elif pod.finished:
            is_node_gone = self._fencing is not None and self._fencing.is_node_gone(pod.spec.node_name)
            is_lost = is_lost_with_node(pod, is_node_gone=is_node_gone)
            self._on_pod_ended(Ended(uid, f"the pod has {pod.status.phase.lower()}", lost_with_node=is_lost))
        elif self._dependencies.has_dependent_record(uid):
            is_served = self._served.includes(pod.metadata.namespace)
            if is_served and pod.metadata.labels.get(names.PROTECTED) != "true":
                await self._restore_label(pod)
            if not self._is_cached(workload):
                asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._queue.add, workload)

    async def _report_if_fenced(self, workload: WorkloadRef, also: str) -> None:
        """Report the end of a pod that the API server lacks, once none of its processes can run any more."""
        what = f"the pod was deleted{also}"
        if self._fencing is None:
            self._on_pod_ended(Ended(workload.uid, what))
            return
        self._absent[workload.uid] = _Absent(workload, what)
        await self._settle(workload)

    async def _settle(self, workload: WorkloadRef) -> None:
        """Report the end of an absent pod, or wait for its node or its kubelet's time."""
        absent, fencing = self._absent.get(workload.uid), self._fencing
        if absent is None or fencing is None:
            return
        absent.cancel_timer()
        blocker = fencing.blocker_of(workload)
        if blocker is None and await self._confirm_node(workload, fencing):
            is_lost = not fencing.has_finished(workload) and fencing.is_node_gone(workload.node)
            self._report_end(Ended(workload.uid, absent.what, lost_with_node=is_lost))
        elif not self._dependencies.has_dependent_record(workload.uid):
            self._absent.pop(workload.uid, None)
        elif blocker is None:
            absent.timer = self._look_again_in(LOOK_AGAIN_SECONDS, workload)
        else:
            absent.log_blocker(blocker.why)
            if blocker.until is not None:
                absent.timer = self._look_again_in(blocker.until - self._now(), workload)

    async def _confirm_node(self, workload: WorkloadRef, fencing: PodFencing) -> bool:
        """Return False if the pod's end follows from its node, and the cache of nodes is late."""
        if fencing.has_finished(workload) or not fencing.is_node_gone(workload.node):
            return True
        node = await self._api.find(NODES, workload.node, into=Node)
        return has_node_gone(node) and fencing.is_node_gone(workload.node)

    def _look_again_in(self, seconds: float, workload: WorkloadRef) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(seconds, 0.0), self._queue.add, workload)

    def _report_end(self, ended: Ended) -> None:
        self._absent.pop(ended.workload_uid, None)
        self._on_pod_ended(ended)

    def _on_node_changed(self, name: str) -> None:
        for absent in self._absent.values():
            if absent.workload.node == name:
                self.enqueue_check(absent.workload)

    async def _restore_label(self, pod: Pod) -> None:
        metadata = pod.metadata
        patch: Object = {"metadata": {"labels": {names.PROTECTED: "true"}}}
        if not await patch_same(self._api, PODS, metadata, patch):  # the pod has ended meanwhile
            self.enqueue_check(workload_of(pod))
            return
        log.warning("label was removed and is put back", namespace=metadata.namespace, pod=metadata.name)
        text = f"The label {names.PROTECTED} was removed while the pod was counted on, and was put back"
        involved = PODS.reference(metadata.name, metadata.namespace, metadata.uid)
        self._events.record_event(ObjectEvent(involved, REASON, text, warning=True))
