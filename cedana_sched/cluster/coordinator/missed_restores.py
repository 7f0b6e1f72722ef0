"""Protected pods that started cold although a snapshot existed or was in flight: no webhook prepared the restore.

A webhook with a stale cache of Checkpoints prepares a pod for its next preemption, but not for its restore. The pod
then starts cold without any other sign. The program already runs, so this cannot be undone: it is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from cedana_sched.adapter.protected_pods import find_identity, workload_of
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById, describe_missed_checkpoint
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.builtin_kinds import Metadata, Pod, read_time
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names

LATE_SECONDS = 600.0
"""An earlier leader has published pods created before that."""
_PUBLISHED_ELSEWHERE = frozenset({names.RESTORE_IDENTITY, names.NOT_PROTECTED, names.MISSED_BY_WEBHOOK})


class MissedRestores:
    """Detection of such pods. Run `run` as a task.

    Args:
        pods: all protected pods.
        snapshots: restorable and in flight.
        publish: publishes the event.
        now: the time of day.
    """

    def __init__(
        self,
        pods: Informer[Pod],
        snapshots: CheckpointsById,
        publish: Callable[[PublishEvent], None],
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._pods = pods
        self._snapshots = snapshots
        self._publish = publish
        self._now = now

    async def run(self) -> None:
        """Publish existing cases, then each newly bound one, forever."""
        await self._pods.synced.wait()
        await self._snapshots.synced.wait()
        for pod in self._pods:
            self._on_changed(None, pod)
        self._pods.subscribe(self._on_changed)
        try:
            await asyncio.Event().wait()
        finally:
            self._pods.unsubscribe(self._on_changed)

    def _on_changed(self, before: Pod | None, now: Pod | None) -> None:
        if now is None or now.finished or not now.spec.node_name or (before is not None and before.spec.node_name):
            return
        annotations, identity = now.metadata.annotations, find_identity(now)
        if identity is None or not _PUBLISHED_ELSEWHERE.isdisjoint(annotations):
            return
        if not is_recent_pod(now.metadata, self._now()):
            return
        if (missed := self._snapshots.newest_checkpoint_missed_by(now, identity.id, identity.index)) is None:
            return
        why = _describe_cause(missed, now.metadata)
        text = (
            f"Started {now.metadata.name} without checkpoint {describe_missed_checkpoint(missed)}: {why}, or the pod"
            " names another runtime class. Delete the pod to have its successor continue"
        )
        self._publish(PublishEvent("ColdStart", text, Severity.WARNING, identity, workload_of(now)))


def is_recent_pod(pod: Metadata, now: datetime) -> bool:
    """Whether the pod is too new for an earlier leader to have published its cold start."""
    created = read_time(pod.creation_timestamp)
    return created is not None and now.timestamp() - created < LATE_SECONDS


def _describe_cause(missed: KnownCheckpoint, pod: Metadata) -> str:
    if (missed.began_at or 0.0) > (read_time(pod.creation_timestamp) or 0.0):
        return "it began only when the pod was created already"
    return "the webhook's cache was behind"
