"""Deletions of protected pods that no eviction explains: by a person, a controller, or what no webhook has seen.

A deletion cannot be refused: its client would fail, and controllers would retry for ever. So the pod's preStop hook
waits until this module says what the deletion is. A pod that has a successor is saved, and its successor continues;
one that is deleted for good ends as it would without us, unless its policy says `onFinalDeletion: Save`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

import msgspec
import structlog

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.adapter.protected_pods import build_victim, mark_not_preempted
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.objects import names
from cedana_sched.model.policy import OnFinalDeletion
from cedana_sched.model.preemption import CONFIRMATION_SECONDS, Signal
from cedana_sched_kubernetes.disruption_condition import write_disruption_condition
from cedana_sched_kubernetes.remaining_pod_counts import RemainingPodCounts
from cedana_sched_kubernetes.successors import Successors

log = structlog.get_logger(__name__)

FOLLOWS_SECONDS: Final = 90.0
"""How long after a release a deletion counts as its consequence: an eviction may be refused for a minute."""
DELETED: Final = "DeletionOfPod"
"""Reason of signals, and of the condition `DisruptionTarget`."""

_Key = tuple[str, str, str]
"""Namespace, name and uid of a pod."""


class _Eviction(msgspec.Struct, frozen=True):
    """A released eviction, and the loop's time until which a deletion follows from it."""

    signal_uid: str
    until: float


class Deletions:
    """Turns deletions of pods into reports. Run `run` as a task.

    Args:
        adapter: the name in records.
        cluster: the coordinator's shared clients and caches.
        concerns: whether this adapter explains the deletions of a protected pod.
        is_left_out: whether a pod is not saved from a shutdown of its node that is in progress.
        now: the current time.
    """

    def __init__(
        self,
        adapter: str,
        cluster: ClusterAccess,
        *,
        concerns: Callable[[Pod], bool],
        is_left_out: Callable[[Pod], bool],
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._adapter = adapter
        self._cluster = cluster
        self._concerns = concerns
        self._is_left_out = is_left_out
        self._now = now
        self._signals: dict[str, Signal] = {}
        """By uid of the pod."""
        self._evicted: dict[str, _Eviction] = {}
        """By uid: pods whose deletion follows from a release."""
        self._remaining = RemainingPodCounts()
        self._successors = Successors(cluster.api, self._remaining)
        self._queue: WorkQueue[_Key] = WorkQueue("deletion of a pod", self._explain, group_of=_namespace_of)
        self._readers: ReportFanout[Report] = ReportFanout()

    async def run(self) -> None:
        """Watch the pods, forever."""
        pods = self._cluster.pods
        await pods.synced.wait()
        pods.subscribe(self._on_pod_change)
        try:
            for pod in pods:
                self._on_pod_change(None, pod)
            await self._queue.run()
        finally:
            pods.unsubscribe(self._on_pod_change)

    def subscribed_queue(self, queue: asyncio.Queue[Report]) -> AbstractContextManager[asyncio.Queue[Report]]:
        """Return a block in which the queue gets the deletions that are not over, then new ones."""
        return self._readers.subscribed_queue(map(Preempted, self._signals.values()), queue)

    def on_evicted(self, uid: str, signal_uid: str) -> None:
        """Record that a pod is deleted soon because its eviction was released."""
        self._evicted[uid] = _Eviction(signal_uid, asyncio.get_running_loop().time() + FOLLOWS_SECONDS)

    def on_eviction_cancelled(self, signal_uid: str) -> None:
        """Record that the pods run on although their eviction was released: a later deletion has another cause."""
        self._evicted = {uid: one for uid, one in self._evicted.items() if one.signal_uid != signal_uid}

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        self._remaining.on_pod_change(before, now)
        if before is not None and (now is None or now.metadata.uid != before.metadata.uid):
            self._signals.pop(before.metadata.uid, None)
            self._evicted.pop(before.metadata.uid, None)
        if now is None or now.metadata.deletion_timestamp is None:
            return
        metadata = now.metadata
        is_new = before is None or before.metadata.deletion_timestamp is None or before.metadata.uid != metadata.uid
        if is_new or (is_handed_over(now) and before is not None and not is_handed_over(before)):
            self._queue.add((metadata.namespace, metadata.name, metadata.uid))

    async def _explain(self, key: _Key) -> None:
        """Report the deletion of a running pod, or mark the pod as not preempted.

        Raises:
            ApiError: its controller cannot be read, or it cannot be marked.
        """
        namespace, name, uid = key
        pod = self._cluster.pods.get(name, namespace)
        if pod is None or pod.metadata.uid != uid or pod.status.phase != "Running" or not self._concerns(pod):
            return
        evicted = self._evicted.get(uid)
        is_released = evicted is not None and asyncio.get_running_loop().time() < evicted.until
        if is_released or _is_explained(pod) or not self._is_hook_waiting(pod):
            return
        victim = None if self._is_left_out(pod) else build_victim(pod, self._cluster.policies)
        if victim is None or not (
            victim.policy.on_final_deletion is OnFinalDeletion.SAVE or await self._successors.has_successor(pod)
        ):
            await mark_not_preempted(self._cluster.api, pod)
            return
        signal = Signal(
            f"{uid}@{pod.metadata.deletion_timestamp}",
            self._adapter,
            (victim,),
            DELETED,
            self._now().timestamp(),
            not_after=pod.metadata.deletion_deadline,
        )
        self._signals[uid] = signal
        self._readers.publish(Preempted(signal))
        await write_disruption_condition(self._cluster.api, pod, DELETED, "deleted, and saved before its end")

    def _is_hook_waiting(self, pod: Pod) -> bool:
        """Return whether the pod's preStop hook waits: a program that already ends is not worth saving."""
        annotations, began_at = pod.metadata.annotations, pod.metadata.deletion_began_at or 0.0
        has_hook = (
            names.PRESTOP_TOKEN in annotations and annotations.get(names.CONFIRM_DELETION) == names.CONFIRM_ALWAYS
        )
        return has_hook and self._now().timestamp() - began_at < CONFIRMATION_SECONDS


def _namespace_of(key: _Key) -> str:
    return key[0]


def is_handed_over(pod: Pod) -> bool:
    """Return whether the adapter of the pod's scheduler says that its scheduler does not preempt it."""
    return pod.metadata.annotations.get(names.NOT_PREEMPTED) == names.NOT_BY_SCHEDULER


def _is_explained(pod: Pod) -> bool:
    """Return whether its scheduler's eviction is the reason, or it is said not to be a preemption."""
    return pod.is_evicted or pod.metadata.annotations.get(names.NOT_PREEMPTED) == "true"
