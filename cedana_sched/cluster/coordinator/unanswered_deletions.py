"""Publishes on a deleted pod that its preStop hook waited in vain: no Checkpoint began, and no adapter marked the pod.

No coordinator led meanwhile, or the adapter that should have answered did not run. The work since the pod's last
snapshot is lost then, without any other sign.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

from cedana_sched.adapter.protected_pods import find_identity, workload_of
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.builtin_kinds import Pod, read_time
from cedana_sched.kube.own_kinds.order_exchange import RELEASED_SECONDS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import CONFIRMATION_SECONDS, AfterCommit

EVENT_REASON: Final = "NotSavedInTime"
MARGIN_SECONDS: Final = 3.0
"""The hook begins after the deletion, whose time is in whole seconds."""
LATE_SECONDS: Final = 600.0
"""An earlier leader has published older ones."""
_WHY: Final = (
    f"was not answered within {CONFIRMATION_SECONDS:.0f} s, because no coordinator led, or the adapter of its scheduler"
    " did not run: it ends, and the work since its last snapshot is lost"
)


class UnansweredDeletions:
    """Detection of such pods. Run `run` as a task.

    Args:
        pods: all protected pods.
        checkpoints: those that may explain a deletion.
        publish: publishes the event.
        now: the time of day.
    """

    def __init__(
        self,
        pods: Informer[Pod],
        checkpoints: CheckpointsById,
        publish: Callable[[PublishEvent], None],
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._pods = pods
        self._checkpoints = checkpoints
        self._publish = publish
        self._now = now
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """By uid of a pod whose hook waits, or has waited."""

    async def run(self) -> None:
        """Publish existing cases, then each new one once its hook has waited, forever."""
        await self._pods.synced.wait()
        await self._checkpoints.synced.wait()
        for pod in self._pods:
            self._on_changed(None, pod)
        self._pods.subscribe(self._on_changed)
        try:
            await asyncio.Event().wait()
        finally:
            self._pods.unsubscribe(self._on_changed)
            for timer in self._timers.values():
                timer.cancel()

    def _on_changed(self, before: Pod | None, now: Pod | None) -> None:
        is_gone = before is not None and (now is None or now.metadata.uid != before.metadata.uid)
        if before is not None and is_gone and (timer := self._timers.pop(before.metadata.uid, None)) is not None:
            timer.cancel()
        if now is None or now.metadata.uid in self._timers or (began_at := _hook_began_at(now)) is None:
            return
        waited = self._now().timestamp() - began_at
        if waited < LATE_SECONDS:
            pause = max(CONFIRMATION_SECONDS + MARGIN_SECONDS - waited, 0.0)
            key = now.metadata.name, now.metadata.namespace, now.metadata.uid
            self._timers[now.metadata.uid] = asyncio.get_running_loop().call_later(pause, self._publish_if_lost, *key)

    def _publish_if_lost(self, name: str, namespace: str, uid: str) -> None:
        pod = self._pods.get(name, namespace)
        if pod is None or pod.metadata.uid != uid or not _is_running(pod) or _is_marked(pod):
            return
        identity = find_identity(pod)
        if identity is None or self._checkpoints.has_checkpoint_for_deletion(pod, identity):
            return
        if self._was_released(pod, identity):
            return
        text = f"The deletion of {name} {_WHY}"
        self._publish(PublishEvent(EVENT_REASON, text, Severity.WARNING, identity, workload_of(pod)))

    def _was_released(self, pod: Pod, identity: Identity) -> bool:
        """Whether a checkpoint had ended shortly before the deletion, so that the hook has not waited for an answer."""
        since = (pod.metadata.deletion_began_at or 0.0) - RELEASED_SECONDS
        return any(
            one.spec.pod_ref.uid == pod.metadata.uid
            and one.spec.after_commit != AfterCommit.LEAVE_RUNNING
            and (read_time(one.status.completion_time) or 0.0) >= since
            for one in self._checkpoints.of_identity.objects_of(identity)
        )


def _hook_began_at(pod: Pod) -> float | None:
    """Return when the pod was deleted (seconds since the epoch); None if no hook of it waits for an answer."""
    has_hook = pod.is_deletion_to_be_explained and names.PRESTOP_TOKEN in pod.metadata.annotations
    return pod.metadata.deletion_began_at if has_hook else None


def _is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running" and any(one.running for one in pod.status.container_statuses)


def _is_marked(pod: Pod) -> bool:
    """Whether an adapter has answered that the pod is not saved; one that is handed over still waits for an answer."""
    return pod.metadata.annotations.get(names.NOT_PREEMPTED, names.NOT_BY_SCHEDULER) != names.NOT_BY_SCHEDULER
