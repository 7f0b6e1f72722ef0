"""The pods that are present on this node: a pod counts as gone only once the API server confirms it.

A pod leaves the watch of protected pods also when our label is removed from it. Then the pod still runs, and the
coordinator labels it again (`cluster/coordinator/pod_end_confirmation.py`). If the agent counted such a pod as gone, it
would remove the plan of the pod's restore, and the runtime handler would start the pod from scratch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, NotServedError
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.preemption import WorkloadRef

log = structlog.get_logger(__name__)

LOOK_AGAIN_SECONDS = 5.0
"""Poll interval: no watch shows a pod without our label."""

Sink = Callable[[Pod | None, Pod | None], None]


class PresentPods:
    """Tracks the pods of one node across loss of their label. Run `run` as a task.

    Args:
        api: may get pods.
        node: the node of the pods.
        informer: of the protected pods.
    """

    def __init__(self, api: Api, node: str, informer: Informer[Pod]) -> None:
        self._api = api
        self._node = node
        self._informer = informer
        self._left: dict[str, Pod] = {}
        """Pods that the informer no longer shows, by uid, as last read."""
        self._sinks: list[Sink] = []
        self._queue = WorkQueue("look for a pod", self._recheck_pod)
        informer.subscribe(self._on_informer_change)

    async def run(self) -> None:
        """Process the queue until cancelled; a rejected read is retried."""
        await self._queue.run()

    def __iter__(self) -> Iterator[Pod]:
        return iter((*self._informer, *self._left.values()))

    def subscribe(self, sink: Sink) -> None:
        """See `Informer.subscribe`: the new value is None once a pod without our label has finished or is gone."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Sink) -> None:
        self._sinks.remove(sink)

    async def find_and_track(self, workload: WorkloadRef) -> Pod | None:
        """Read the pod with this name and uid, on whichever node; if it is on this node and has not finished, track it.

        Raises:
            ApiError: the pod cannot be read.
        """
        pod = await self._find(workload.name, workload.namespace)
        if pod is None or pod.metadata.uid != workload.uid:
            return None
        if pod.spec.node_name == self._node and not pod.finished:
            self._track_pod(pod)
        return pod

    async def _find(self, name: str, namespace: str) -> Pod | None:
        try:
            return await self._api.get(PODS, name, namespace, into=Pod)
        except NotServedError:
            raise
        except AbsentError:
            return None

    def _is_known(self, uid: str) -> bool:
        return any(pod.metadata.uid == uid for pod in self)

    def _track_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if not self._is_known(uid):  # the informer may have shown it meanwhile
            self._left[uid] = pod
            self._queue.add(uid)
            self._notify_subscribers(None, pod)

    def _on_informer_change(self, before: Pod | None, now: Pod | None) -> None:
        if now is not None:
            self._notify_subscribers(before or self._left.pop(now.metadata.uid, None), now)
        elif before is not None:
            self._left[before.metadata.uid] = before
            self._queue.add(before.metadata.uid)

    async def _recheck_pod(self, uid: str) -> None:
        if (known := self._left.get(uid)) is None:
            return
        pod = await self._find(known.metadata.name, known.metadata.namespace)
        if uid not in self._left:  # it has its label again
            return
        if pod is None or pod.metadata.uid != uid or pod.finished:
            self._notify_subscribers(self._left.pop(uid), None)
            return
        before, self._left[uid] = self._left[uid], pod
        if pod.metadata.resource_version != before.metadata.resource_version:
            self._notify_subscribers(before, pod)
        asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._queue.add, uid)

    def _notify_subscribers(self, before: Pod | None, now: Pod | None) -> None:
        for sink in tuple(self._sinks):
            try:
                sink(before, now)
            except Exception:  # a defect in one pod must cost neither the others nor the agent
                log.exception("subscriber failed", pods=[one.metadata.name for one in (before, now) if one is not None])
