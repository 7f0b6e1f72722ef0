"""Removes nominations for nodes that no pod is leaving.

Volcano writes the nominated node of a preemptor whether or not the eviction succeeded; and a nominated pod does not
preempt again within its queue (`taskEligibleToPreempt` in Volcano's pkg/scheduler/actions/preempt). So it would never
retry a victim whose eviction was refused while the victim is saved. Without the nomination it retries in the next
cycle, and is nominated again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ConflictError
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.response_decoding import UnreadableSink
from cedana_sched.kube.watching import Informer, Key, Watch, object_key_of
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched_volcano.objects import SCHEDULER_NAME

log = structlog.get_logger(__name__)

PATIENCE_SECONDS: Final = 1.2
"""A refused eviction is retried once, after a second; until then Volcano assumes its victim gone."""
_WAITING: Final = f"spec.schedulerName={SCHEDULER_NAME},spec.nodeName=,status.nominatedNodeName!="


class NominatedStatus(msgspec.Struct, frozen=True, rename="camel"):
    nominated_node_name: str = ""


class NominatedPod(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: NominatedStatus = NominatedStatus()


class _Deletion(msgspec.Struct, frozen=True, rename="camel"):
    deletion_timestamp: str | None = None


class _PodDeletion(msgspec.Struct, frozen=True):
    """Any pod, reduced to whether it is terminating."""

    metadata: _Deletion


class NominationRemover:
    """Removes nominations for nodes with protected pods. Run `run` as a task.

    Args:
        pods: protected ones.
        unreadable: called for pods that cannot be read.
    """

    def __init__(self, api: Api, pods: Informer[Pod], unreadable: UnreadableSink | None = None) -> None:
        self._api = api
        self._protected = Index(_node_of_unfinished_pod, pods)
        # of all namespaces: preemptors in unserved namespaces may wait for held pods, too
        self._waiting = Informer(Watch(api, PODS, NominatedPod, fields=_WAITING), unreadable)
        self._doubts = WorkQueue("removal of a nomination", self._remove_stale_nominations)
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._due: dict[str, set[Key]] = {}
        """By node: pods nominated for long enough. Those of a gang arrive together, and are reviewed together."""

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All informers that `run` runs."""
        return (self._waiting,)

    async def run(self) -> None:
        """Process nominated pods, forever."""
        self._waiting.subscribe(self._on_pod_change)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._waiting.run(), name="nominated pods")
                group.create_task(self._doubts.run(), name="removal of nominations")
        finally:
            self._waiting.unsubscribe(self._on_pod_change)
            for timer in self._timers.values():
                timer.cancel()

    def _on_pod_change(self, _: NominatedPod | None, now: NominatedPod | None) -> None:
        if now is not None:
            self._schedule_review(object_key_of(now))

    def _schedule_review(self, key: Key) -> None:
        if key not in self._timers:
            self._timers[key] = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._enqueue_review, key)

    def _enqueue_review(self, key: Key) -> None:
        self._timers.pop(key, None)
        if node := self._nominated_node_of(key):
            self._due.setdefault(node, set()).add(key)
            self._doubts.add(node)

    def _nominated_node_of(self, key: Key) -> str:
        """Return its nominated node; empty if there is none any more."""
        pod = self._waiting.get(key[1], key[0])
        return "" if pod is None else pod.status.nominated_node_name

    async def _remove_stale_nominations(self, node: str) -> None:
        stands = not self._protected.objects_of(node) or await self._has_terminating_pod(node)
        due = self._due.get(node, set())
        for key in tuple(due):
            if stands:
                self._schedule_review(key)
            elif self._nominated_node_of(key) == node:
                await self._remove(key, node)
            due.discard(key)
        if not due:
            self._due.pop(node, None)

    async def _remove(self, key: Key, node: str) -> None:
        namespace, name = key
        if (pod := self._waiting.get(name, namespace)) is None:
            return
        seen = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        patch = {"metadata": seen, "status": {"nominatedNodeName": None}}
        try:
            await self._api.patch(PODS, name, namespace, patch, subresource="status")
        except (AbsentError, ConflictError):  # it is gone, or the watch delivers its change soon
            return
        log.info("nomination removed: no pod leaves that node yet", namespace=namespace, pod=name, node=node)

    async def _has_terminating_pod(self, node: str) -> bool:
        if any(one.metadata.deletion_timestamp is not None for one in self._protected.objects_of(node)):
            return True
        # resourceVersion 0: from the API server's cache, where a list of one node's pods does not read all pods
        query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
        here, _ = await self._api.list_all(PODS, query=query, into=_PodDeletion)
        return any(one.metadata.deletion_timestamp is not None for one in here)


def _node_of_unfinished_pod(pod: Pod) -> str | None:
    return pod.spec.node_name if pod.spec.scheduler_name == SCHEDULER_NAME and not pod.finished else None
